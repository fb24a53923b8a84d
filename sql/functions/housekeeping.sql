-- Housekeeping: each function does a bounded piece in one short transaction and may be stopped and
-- continued by anybody. What somebody else holds is passed over.

-- The second server of a user is new: mark the outbox rows of what is stored here, or make them, in
-- key order. History goes by pull only, so nothing of it becomes due. Returns how many rows, NULL if
-- there is nobody to do this for.
CREATE OR REPLACE FUNCTION mark_outbox(p_me text, p_max integer) RETURNS bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    v_owner text;
    v_server text;
    v_after text;
    v_now bigint;
    v_primary text[]; v_also_owner text[]; v_also text[];
    v_n integer; v_last text;
BEGIN
    SELECT l.owner_login INTO v_owner FROM sync_leases l JOIN user_event_heads h USING (owner_login)
    WHERE l.mark_from IS NOT NULL ORDER BY l.owner_login LIMIT 1 FOR NO KEY UPDATE OF h SKIP LOCKED;
    IF v_owner IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT l.server_login, l.mark_from INTO v_server, v_after FROM sync_leases l
    WHERE l.owner_login = v_owner AND l.mark_from IS NOT NULL
    ORDER BY l.server_login LIMIT 1 FOR NO KEY UPDATE;
    v_now := now_ms();
    IF v_server IS NULL OR NOT EXISTS (
        SELECT FROM user_access_servers_current a JOIN user_access_servers_current b USING (login)
        WHERE a.login = v_owner AND a.server_login = v_server AND b.server_login = p_me)
    THEN
        UPDATE sync_leases SET mark_from = NULL
        WHERE owner_login = v_owner AND server_login = v_server;
        RETURN 0;
    END IF;
    SELECT count(*), max(x.message_key COLLATE "C"), array_agg(x.message_key::text),
           array_agg(CASE WHEN x.message_type IN (2, 4) THEN x.to_login::text END),
           array_agg(CASE WHEN x.message_type IN (2, 4)
                     THEN x.base_key || '|' || (x.message_type - 1) END)
    INTO v_n, v_last, v_primary, v_also_owner, v_also
    FROM (SELECT m.message_key, m.message_type, m.to_login, m.base_key, m.courier
          FROM signed_messages m WHERE m.owner_login = v_owner AND m.message_key > v_after
          ORDER BY m.message_key LIMIT p_max) x
    WHERE NOT x.courier
      -- What waits already waits for the new server too, and may be pushed just now.
      AND NOT EXISTS (SELECT FROM dm_sync_outbox o
                      WHERE o.owner_login = v_owner AND o.primary_message_key = x.message_key
                        AND NOT o.synced);
    IF v_n > 0 THEN
        PERFORM put_outbox(v_now, array_fill(v_owner, ARRAY[v_n]), v_primary, v_also_owner, v_also,
            array_fill(true, ARRAY[v_n]), array_fill(false, ARRAY[v_n]),
            array_fill(NULL::bigint, ARRAY[v_n]));
    END IF;
    -- Courier copies count for the place where to go on, too.
    SELECT max(x.message_key COLLATE "C") INTO v_last
    FROM (SELECT m.message_key FROM signed_messages m
          WHERE m.owner_login = v_owner AND m.message_key > v_after
          ORDER BY m.message_key LIMIT p_max) x;
    UPDATE sync_leases SET mark_from = v_last
    WHERE owner_login = v_owner AND server_login = v_server;
    RETURN v_n;
END $$;
COMMENT ON FUNCTION mark_outbox(text, integer) IS 'Housekeeping: a piece of filling the outbox for a new second server.';

-- Trim the logs of p_owners users after p_after: what is older than p_keep_ms, or beyond the last
-- p_keep events. Devices that were further back get a rebase. `last` is where to go on, NULL = that
-- was the last user; `did` counts events.
CREATE OR REPLACE FUNCTION trim_events(p_after text, p_owners integer, p_keep_ms bigint,
    p_keep bigint, p_max integer, OUT did bigint, OUT last text) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    h user_event_heads;
    v_before bigint := now_ms() - p_keep_ms;
    v_to bigint;
    v_seen integer := 0;
BEGIN
    did := 0;
    last := NULL;
    FOR h IN SELECT * FROM user_event_heads x WHERE x.owner_login > p_after
             ORDER BY x.owner_login LIMIT p_owners LOOP
        v_seen := v_seen + 1;
        last := h.owner_login;
        -- Old events come first: the first that is kept ends it.
        SELECT max(e.pts) INTO v_to FROM (
            SELECT e.pts, e.created_at_ms FROM user_events e
            WHERE e.owner_login = h.owner_login AND e.pts > h.trimmed_pts
            ORDER BY e.pts LIMIT p_max) e
        WHERE e.created_at_ms < v_before OR e.pts <= h.last_pts - p_keep;
        CONTINUE WHEN v_to IS NULL;
        PERFORM FROM user_event_heads x WHERE x.owner_login = h.owner_login
        FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM user_events e
        WHERE e.owner_login = h.owner_login AND e.pts > h.trimmed_pts AND e.pts <= v_to;
        did := did + v_to - h.trimmed_pts;
        UPDATE user_event_heads x SET trimmed_pts = GREATEST(x.trimmed_pts, v_to)
        WHERE x.owner_login = h.owner_login;
        EXIT WHEN did >= p_max;
    END LOOP;
    IF v_seen < p_owners AND did < p_max THEN
        last := NULL;
    END IF;
END $$;
COMMENT ON FUNCTION trim_events(text, integer, bigint, bigint, integer) IS 'Housekeeping: trim the event logs of some users.';

CREATE OR REPLACE FUNCTION forget_rejects(p_keep_ms bigint, p_max integer) RETURNS bigint
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM dm_sync_rejects r USING (
            SELECT owner_login, sync_id FROM dm_sync_rejects
            WHERE last_seen_ms < now_ms() - p_keep_ms
            ORDER BY owner_login, sync_id LIMIT p_max FOR UPDATE SKIP LOCKED) x
        WHERE r.owner_login = x.owner_login AND r.sync_id = x.sync_id RETURNING 1)
    SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION forget_rejects(bigint, integer) IS 'Housekeeping: remove old notes about refused items.';
