-- Results of delivery attempts, and their state for peers.

-- Record results. p_outcome: 1 delivered, 2 failed (the slot is used), 3 given back (it is not; due
-- again after p_retry_after). One row per item: `recorded` false = nothing was changed; `state` as
-- it stands now, NULL if the row is gone; the position of the sender's event, 0 = none. With
-- shine.heads = skip no row for what was left out (take_heads()).
--
-- A failure counts only for the revision, row version and live lease its attempt began with. A
-- success is a fact whoever learnt it: it also turns an accepted row of the same revision delivered
-- when the lease was lost. Results of final rows change nothing. p_schedule NULL = the default one.
CREATE OR REPLACE FUNCTION finish_attempts(
    p_me text, p_process text, p_from text[], p_key text[], p_rev bigint[], p_reenc bigint[],
    p_version bigint[], p_outcome integer[], p_via text[], p_error text[], p_retry_after bigint[],
    p_schedule bigint[] DEFAULT NULL)
RETURNS TABLE (ord integer, recorded boolean, state text, from_pts bigint, from_elsewhere boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_n integer := cardinality(p_key);
    v_schedule bigint[] := coalesce(p_schedule, delivery_schedule());
    v_last integer := cardinality(v_schedule);
    v_act smallint[];   -- 0 nothing, 1 delivered, 2 next slot, 3 given back, 4 failed for good
    v_state text[]; v_owner text[];
    v_any boolean;
    v_pts bigint[];
    v_live text[];
    -- leaving out whose head is held
    v_busy text[]; v_free integer[];
    -- cutting at repetitions
    v_distinct integer; v_prev integer[]; v_lo integer := 1;
BEGIN
    v_busy := (take_heads(p_me, p_from)).o_busy;
    IF v_busy IS NOT NULL THEN
        v_free := items_without(v_busy, p_from, p_from);
        IF cardinality(v_free) > 0 THEN
            RETURN QUERY SELECT v_free[r.ord], r.recorded, r.state, r.from_pts, r.from_elsewhere
                FROM finish_attempts(p_me, p_process, pick(p_from, v_free), pick(p_key, v_free),
                    pick(p_rev, v_free), pick(p_reenc, v_free), pick(p_version, v_free),
                    pick(p_outcome, v_free), pick(p_via, v_free), pick(p_error, v_free),
                    pick(p_retry_after, v_free), p_schedule) r;
        END IF;
        RETURN;
    END IF;
    IF v_n > 1 THEN
        SELECT count(DISTINCT p_key[i] COLLATE "C") INTO v_distinct FROM generate_series(1, v_n) i;
        IF v_distinct < v_n THEN
            SELECT array_agg(prev ORDER BY i) INTO v_prev FROM (
                SELECT i, lag(i, 1, 0) OVER (PARTITION BY p_key[i] COLLATE "C" ORDER BY i) AS prev
                FROM generate_series(1, v_n) i) x;
            FOR v_hi IN 1 .. v_n LOOP
                CONTINUE WHEN v_hi < v_n AND v_prev[v_hi + 1] < v_lo;
                RETURN QUERY SELECT r.ord + v_lo - 1, r.recorded, r.state, r.from_pts,
                        r.from_elsewhere
                    FROM finish_attempts(p_me, p_process, p_from[v_lo:v_hi], p_key[v_lo:v_hi],
                        p_rev[v_lo:v_hi], p_reenc[v_lo:v_hi], p_version[v_lo:v_hi],
                        p_outcome[v_lo:v_hi], p_via[v_lo:v_hi], p_error[v_lo:v_hi],
                        p_retry_after[v_lo:v_hi], p_schedule) r;
                v_lo := v_hi + 1;
            END LOOP;
            RETURN;
        END IF;
    END IF;
    -- Claims take no head, so the rows themselves must be held before they are judged.
    PERFORM FROM generate_series(1, v_n) i
    JOIN dm_delivery_state d ON d.from_login = p_from[i] AND d.outgoing_key = p_key[i]
    ORDER BY d.from_login, d.outgoing_key FOR NO KEY UPDATE OF d;
    v_now := now_ms();
    SELECT array_agg(act), bool_or(act > 0),
           array_agg(CASE act WHEN 0 THEN state WHEN 1 THEN 'delivered' WHEN 4 THEN 'failed'
                     ELSE 'accepted' END),
           -- Only texts are reported, and only to owners served here.
           array_agg(CASE WHEN act IN (1, 4) AND p_key[i] LIKE '%|2'
                           AND EXISTS (SELECT FROM user_access_servers_current a
                                       WHERE a.login = p_from[i] AND a.server_login = p_me)
                     THEN p_from[i] END)
    INTO v_act, v_any, v_state, v_owner
    FROM (
        SELECT i, d.state, (CASE
            WHEN d.state IS DISTINCT FROM 'accepted'
              OR (d.revision_time_ms, d.reencrypted_at_ms) <> (p_rev[i], p_reenc[i]) THEN 0
            WHEN p_outcome[i] = 1 THEN 1
            WHEN d.row_version <> p_version[i] OR d.lease_owner IS DISTINCT FROM p_process
              OR d.lease_until_ms <= v_now THEN 0
            WHEN p_outcome[i] = 3 THEN 3
            WHEN d.attempt_no >= v_last THEN 4
            ELSE 2 END)::smallint AS act
        FROM generate_series(1, v_n) i
        LEFT JOIN dm_delivery_state d ON d.from_login = p_from[i] AND d.outgoing_key = p_key[i]
        ORDER BY i) x;
    IF v_any THEN
        UPDATE dm_delivery_state d SET
            state = v_state[i],
            attempt_no = CASE WHEN v_act[i] = 2 THEN d.attempt_no + 1 ELSE d.attempt_no END,
            claims = 0,
            next_attempt_at_ms = CASE v_act[i]
                WHEN 2 THEN d.accepted_at_ms + v_schedule[d.attempt_no + 1]
                WHEN 3 THEN v_now + LEAST(GREATEST(p_retry_after[i], 0), 60000) END,
            route_hint = coalesce((SELECT a.server_login FROM user_access_servers_current a
                                   WHERE a.login = d.to_login AND a.slot = 1), ''),
            lease_owner = NULL, lease_until_ms = NULL,
            row_version = d.row_version + 1,
            delivered_via = CASE WHEN v_act[i] = 1 THEN nullif(p_via[i], '') END,
            last_error = CASE WHEN v_act[i] > 1 THEN nullif(p_error[i], '') END,
            updated_at_ms = v_now
        FROM generate_series(1, v_n) i
        WHERE v_act[i] > 0 AND d.from_login = p_from[i] AND d.outgoing_key = p_key[i];
        -- The first attempt is over: the author's second server may have the pair now.
        -- Locked in key order: results of pushes take no head, and want the same rows when an edit came
        -- while its older bytes were being pushed.
        UPDATE dm_sync_outbox o SET push_due_at_ms = v_now, row_version = o.row_version + 1
        FROM (SELECT o.owner_login, o.primary_message_key
              FROM generate_series(1, v_n) i
              JOIN dm_sync_outbox o ON o.owner_login = p_from[i] AND o.primary_message_key = p_key[i]
              WHERE v_act[i] IN (1, 2, 4) AND o.push_due_at_ms > v_now AND o.push_tries = 0
              ORDER BY o.owner_login, o.primary_message_key FOR NO KEY UPDATE OF o) x
        WHERE o.owner_login = x.owner_login AND o.primary_message_key = x.primary_message_key;
    END IF;
    v_pts := append_events(v_now, v_owner, array_fill(2::smallint, ARRAY[v_n]), p_key);
    v_live := live_processes(v_now);
    RETURN QUERY
    SELECT i, v_act[i] > 0, v_state[i], v_pts[i], v_pts[i] > 0 AND EXISTS (
        SELECT FROM active_sessions s WHERE s.login = p_from[i] AND s.connected_to = ANY (v_live)
                                        AND s.connected_to <> p_process)
    FROM generate_series(1, v_n) i;
END $$;
COMMENT ON FUNCTION finish_attempts(text, text, text[], text[], bigint[], bigint[], bigint[], integer[], text[], text[], bigint[], bigint[]) IS 'Record the results of delivery attempts, one row per item.';

-- Keys are delivery keys (outgoing; a tombstone's own). No row = not known here.
CREATE OR REPLACE FUNCTION get_delivery_status(p_from text[], p_key text[])
RETURNS TABLE (ord integer, state text, revision_time_ms bigint, reencrypted_at_ms bigint)
LANGUAGE sql STABLE AS $$
    SELECT i, d.state, d.revision_time_ms, d.reencrypted_at_ms
    FROM generate_series(1, cardinality(p_key)) i
    JOIN dm_delivery_state d ON d.from_login = p_from[i] AND d.outgoing_key = p_key[i]
$$;
COMMENT ON FUNCTION get_delivery_status(text[], text[]) IS 'State of delivery rows, for GetDmDeliveryStatus; rows that do not exist are left out.';

CREATE OR REPLACE FUNCTION show_delivery(p_from text, p_key text)
RETURNS TABLE (name text, value text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT x.key, x.value
    FROM v_delivery d, LATERAL json_each_text(row_to_json(d)) x
    WHERE d.from_login = p_from AND d.outgoing_key = p_key;
END $$;
COMMENT ON FUNCTION show_delivery(text, text) IS 'One line of v_delivery as names and texts, in column order.';
