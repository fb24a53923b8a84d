-- The serving half of the pull: what a user's second server may fetch, acknowledgements, and the order
-- to offer everything again.

-- May p_caller (NULL: it has not said who it is) pull what belongs to p_owner? p_holds: unsynced items
-- are left from when we served the owner. p_trust: the configuration lets callers without proof pull.
-- 0 yes, 1 we do not serve the owner and hold nothing, 2 the caller does not serve the owner, or an
-- anonymous one would be served although the server it may be can prove who it is.
CREATE OR REPLACE FUNCTION may_pull(p_me text, p_caller text, p_trust boolean, p_owner text,
                                    p_holds boolean) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_all text[];
    v_others text[];
BEGIN
    SELECT coalesce(array_agg(server_login::text), '{}'),
           coalesce(array_agg(server_login::text) FILTER (WHERE server_login <> p_me), '{}')
    INTO v_all, v_others FROM user_access_servers_current WHERE login = p_owner;
    IF NOT p_me = ANY (v_all) AND NOT p_holds THEN
        RETURN 1;
    ELSIF p_caller IS NOT NULL THEN
        RETURN CASE WHEN p_caller = ANY (v_others) THEN 0 ELSE 2 END;
    ELSIF NOT p_trust OR v_others = '{}' OR EXISTS (
        SELECT FROM sync_servers WHERE server_login = ANY (v_others) AND public_keys <> '{}') THEN
        RETURN 2;
    END IF;
    RETURN 0;
END $$;
COMMENT ON FUNCTION may_pull(text, text, boolean, text, boolean) IS 'Whether a caller may pull what belongs to a user; internal.';

-- Acknowledge p_ack, then one page of the owner's unsynced items after (p_after_stored, p_after_key).
-- At most p_limit items and p_max_bytes of blobs, but at least one. An acknowledgement counts only if
-- it names the item as it is now: whatever changed since it was read is still to be fetched.
--
-- Always one row or more: `verdict` of may_pull(), `more` (others come after this one), and the item, which is all NULL if there is
-- none. blob1 is the incoming copy of a pair, or NULL; blob2 the copy the item is named after.
--
-- `more` counts rows, not what was found for them: a row without its copy, which cannot be, is passed
-- over and does not end the stream.
CREATE OR REPLACE FUNCTION sync_page(p_me text, p_caller text, p_trust boolean, p_owner text,
    p_after_stored bigint, p_after_key text, p_limit integer, p_max_bytes bigint, p_ack text[])
RETURNS TABLE (verdict integer, more boolean, sync_id text, primary_message_key text,
    stored_at_ms bigint, blob1 bytea, blob2 bytea)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_verdict integer;
    v_ack text;
BEGIN
    v_verdict := may_pull(p_me, p_caller, p_trust, p_owner, EXISTS (
        SELECT FROM dm_sync_outbox o WHERE o.owner_login = p_owner AND NOT o.synced));
    IF v_verdict > 0 THEN
        RETURN QUERY SELECT v_verdict, false, NULL::text, NULL::text, NULL::bigint, NULL::bytea, NULL::bytea;
        RETURN;
    END IF;
    -- One by one, in key order: joined to the array, the planner may walk through all rows of the owner
    -- for each one. CASE keeps it from doing so by the index of unsynced rows.
    FOR v_ack IN SELECT x FROM unnest(p_ack) x ORDER BY split_part(x, ':', 1) COLLATE "C" LOOP
        UPDATE dm_sync_outbox o SET synced = true, push_due_at_ms = NULL, lease_owner = NULL,
            lease_until_ms = NULL, row_version = o.row_version + 1
        WHERE o.owner_login = p_owner AND o.primary_message_key = split_part(v_ack, ':', 1)
          AND o.sync_id = v_ack AND CASE WHEN o.synced THEN false ELSE true END;
    END LOOP;
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT o.sync_id::text, o.primary_message_key, o.stored_at_ms,
               octet_length(m.blob) + coalesce(octet_length(a.blob), 0) AS bytes,
               k.to_login, k.in_key
        FROM (SELECT x.sync_id, x.primary_message_key, x.stored_at_ms FROM dm_sync_outbox x
              WHERE x.owner_login = p_owner AND NOT x.synced
                AND (x.stored_at_ms, x.primary_message_key) > (p_after_stored, p_after_key COLLATE "C")
              ORDER BY x.stored_at_ms, x.primary_message_key LIMIT p_limit + 1) o
        CROSS JOIN LATERAL (SELECT
            split_part(o.primary_message_key, '|', 2) AS to_login,
            CASE right(o.primary_message_key, 2) WHEN '|2' THEN left(o.primary_message_key, -1) || '1'
                 WHEN '|4' THEN left(o.primary_message_key, -1) || '3' END AS in_key OFFSET 0) k
        LEFT JOIN signed_messages m ON m.owner_login = p_owner AND m.message_key = o.primary_message_key
        LEFT JOIN signed_messages a ON a.owner_login = k.to_login AND a.message_key = k.in_key),
    kept AS (
        SELECT p.*, row_number() OVER w AS n, sum(coalesce(p.bytes, 0)) OVER w AS total,
               count(*) OVER () AS found
        FROM page p WINDOW w AS (ORDER BY p.stored_at_ms, p.primary_message_key))
    SELECT 0, coalesce(k.n < k.found, false), k.sync_id, k.primary_message_key::text, k.stored_at_ms,
           (SELECT a.blob FROM signed_messages a
            WHERE a.owner_login = k.to_login AND a.message_key = k.in_key),
           (SELECT m.blob FROM signed_messages m
            WHERE m.owner_login = p_owner AND m.message_key = k.primary_message_key)
    FROM (SELECT 1) one
    LEFT JOIN kept k ON k.n <= p_limit AND (k.n = 1 OR k.total <= p_max_bytes)
    ORDER BY k.n;
END $$;
COMMENT ON FUNCTION sync_page(text, text, boolean, text, bigint, text, integer, bigint, text[]) IS 'Acknowledge items of the outbox and read the next page of it, for the owner''s second server.';

-- How a setting is named in pages and acknowledgements; means nothing to whoever pulls it.
CREATE OR REPLACE FUNCTION setting_sync_id(p_name text, p_time bigint, p_value text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_name || ':' || p_time || ':' ||
           left(encode(sha256(convert_to(p_value, 'UTF8')), 'hex'), 16)
$$;
COMMENT ON FUNCTION setting_sync_id(text, bigint, text) IS 'name:timeMs:digest of a setting as it is.';

-- The same for settings; p_max_bytes counts bytes of values.
CREATE OR REPLACE FUNCTION sync_settings_page(p_me text, p_caller text, p_trust boolean, p_owner text,
    p_after_stored bigint, p_after_name text, p_limit integer, p_max_bytes bigint, p_ack text[])
RETURNS TABLE (verdict integer, more boolean, sync_id text, name text, value text, time_ms bigint,
    stored_at_ms bigint, signature bytea)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_verdict integer;
    v_ack text;
BEGIN
    v_verdict := may_pull(p_me, p_caller, p_trust, p_owner, EXISTS (
        SELECT FROM user_settings u WHERE u.login = p_owner AND NOT u.synced));
    IF v_verdict > 0 THEN
        RETURN QUERY SELECT v_verdict, false, NULL::text, NULL::text, NULL::text, NULL::bigint,
                            NULL::bigint, NULL::bytea;
        RETURN;
    END IF;
    FOR v_ack IN SELECT x FROM unnest(p_ack) x ORDER BY split_part(x, ':', 1) COLLATE "C" LOOP
        UPDATE user_settings u SET synced = true
        WHERE u.login = p_owner AND u.name = split_part(v_ack, ':', 1)
          AND CASE WHEN u.synced THEN false ELSE true END
          AND v_ack = setting_sync_id(u.name, u.time_ms, u.value);
    END LOOP;
    RETURN QUERY
    WITH kept AS (
        SELECT p.*, row_number() OVER w AS n, sum(p.bytes) OVER w AS total, count(*) OVER () AS found
        FROM (SELECT x.name, x.stored_at_ms, octet_length(x.value) AS bytes FROM user_settings x
              WHERE x.login = p_owner AND NOT x.synced
                AND (x.stored_at_ms, x.name) > (p_after_stored, p_after_name COLLATE "C")
              ORDER BY x.stored_at_ms, x.name LIMIT p_limit + 1) p
        WINDOW w AS (ORDER BY p.stored_at_ms, p.name))
    SELECT 0, coalesce(k.n < k.found, false), setting_sync_id(u.name, u.time_ms, u.value),
           u.name::text, u.value::text, u.time_ms, u.stored_at_ms, u.signature
    FROM (SELECT 1) one
    LEFT JOIN kept k ON k.n <= p_limit AND (k.n = 1 OR k.total <= p_max_bytes)
    LEFT JOIN user_settings u ON u.login = p_owner AND u.name = k.name
    ORDER BY k.n;
END $$;
COMMENT ON FUNCTION sync_settings_page(text, text, boolean, text, bigint, text, integer, bigint, text[]) IS 'Acknowledge settings and read the next page of those that the owner''s second server lacks.';

-- Offer everything that belongs to p_login to the server p_server: settings at once (they are few),
-- messages by housekeeping, which goes through them from the first. The caller holds the head.
CREATE OR REPLACE FUNCTION order_full_sync(p_login text, p_server text) RETURNS bigint
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    v_settings bigint;
BEGIN
    PERFORM FROM user_settings WHERE login = p_login ORDER BY name FOR NO KEY UPDATE;
    UPDATE user_settings SET synced = false WHERE login = p_login AND synced;
    SELECT count(*) INTO v_settings FROM user_settings WHERE login = p_login;
    INSERT INTO sync_leases (owner_login, server_login, mark_from, due_at_ms)
    VALUES (p_login, p_server, '', now_ms())
    ON CONFLICT (owner_login, server_login) DO UPDATE SET mark_from = '',
        due_at_ms = excluded.due_at_ms;
    RETURN v_settings;
END $$;
COMMENT ON FUNCTION order_full_sync(text, text) IS 'Mark all that a user has as unsynced towards a server; internal.';

-- MarkAllUserSettingsUnsynced for one user: how many settings are marked, and how many messages and
-- tombstones will be. Zeros if there is no second server.
CREATE OR REPLACE FUNCTION mark_unsynced(p_me text, p_login text, OUT settings bigint, OUT dms bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    v_second text;
BEGIN
    settings := 0;
    dms := 0;
    PERFORM lock_heads(p_me, ARRAY[p_login]);
    SELECT max(server_login) FILTER (WHERE server_login <> p_me) INTO v_second
    FROM user_access_servers_current WHERE login = p_login HAVING bool_or(server_login = p_me);
    IF v_second IS NOT NULL THEN
        settings := order_full_sync(p_login, v_second);
        SELECT count(*) INTO dms FROM signed_messages WHERE owner_login = p_login AND NOT courier;
    END IF;
END $$;
COMMENT ON FUNCTION mark_unsynced(text, text) IS 'Offer everything of a user to their second server again; the numbers of settings and of messages.';

-- The same for everybody, p_limit users after p_after at a time (NULL = all, in one transaction): for
-- operators, after a database was lost or replaced. `last` is where to go on, NULL = that was all.
CREATE OR REPLACE FUNCTION mark_all_unsynced(p_me text, p_after text DEFAULT '',
    p_limit integer DEFAULT NULL, OUT users bigint, OUT settings bigint, OUT dms bigint, OUT last text)
LANGUAGE plpgsql AS $$
DECLARE
    v_one record;
    v_marked record;
BEGIN
    users := 0;
    settings := 0;
    dms := 0;
    -- Heads in order of login, as everywhere.
    FOR v_one IN
        SELECT a.login::text AS login FROM user_access_servers_current a
        WHERE a.server_login = p_me AND a.login > p_after
          AND EXISTS (SELECT FROM user_access_servers_current b
                      WHERE b.login = a.login AND b.server_login <> p_me)
        ORDER BY a.login LIMIT p_limit
    LOOP
        v_marked := mark_unsynced(p_me, v_one.login);
        users := users + 1;
        settings := settings + v_marked.settings;
        dms := dms + v_marked.dms;
        last := v_one.login;
    END LOOP;
    IF p_limit IS NULL OR users < p_limit THEN
        last := NULL;
    END IF;
END $$;
COMMENT ON FUNCTION mark_all_unsynced(text, text, integer) IS 'Operator: offer everything of everybody to their second servers again. SELECT * FROM mark_all_unsynced(''LOGIN OF THIS SERVER''); shinectl sync mark-unsynced --all does it in short transactions.';
