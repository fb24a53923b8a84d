-- Incoming copies that come alone (ReceiveIncomingMessage).

-- Arrays have one element per copy, those of receipts' bodies as in accept_pairs. One row per copy;
-- verdicts as there: 0 stored, nothing to change, or covered by a tombstone, 1 the recipient is not served here, 2 unknown user, 3 a time is more than 24 h
-- ahead. A copy that occurs twice in a batch gives what one call after the other would give.
--
-- Where the author is served here too and his delivery row waits, this is the proof that the
-- recipient's copy is safe: the row turns delivered.
--
-- p_history: they come from a page of the recipient's second server (history.sql).
--
-- With shine.heads = skip, items whose heads somebody holds are left out: no row, nothing done
-- (take_heads()).
CREATE OR REPLACE FUNCTION apply_incoming(
    p_me text, p_process text,
    p_from text[], p_to text[], p_base text[], p_type integer[], p_time bigint[], p_nonce bigint[],
    p_rev bigint[], p_reenc bigint[], p_sha bytea[], p_blob bytea[], p_source text[],
    p_ref_time bigint[] DEFAULT '{}', p_ref_nonce bigint[] DEFAULT '{}',
    p_read_at bigint[] DEFAULT '{}', p_history boolean DEFAULT false)
RETURNS TABLE (ord integer, verdict integer, to_pts bigint, to_elsewhere boolean,
               from_pts bigint, from_elsewhere boolean, ws_sessions bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_n integer := cardinality(p_base);
    v_verdict integer[]; v_skip boolean[]; v_to_served boolean[];
    v_from_served boolean[]; v_to_second text[]; v_from_second text[];
    v_key text[]; v_out_key text[];
    v_tombstones boolean; v_marks boolean; v_not boolean[];
    v_action smallint[]; v_cur_rev bigint[]; v_cur_reenc bigint[]; v_same boolean[];
    v_d_act smallint[]; v_told boolean[];
    v_any_second boolean; v_any_old boolean; v_any_told boolean;
    v_tell text[]; v_kind smallint[]; v_ev_key text[];
    v_pts bigint[];
    v_live text[];
    -- leaving out whose head is held
    v_busy text[]; v_free integer[];
    -- cutting at repetitions
    v_distinct integer; v_prev integer[]; v_lo integer := 1;
BEGIN
    SELECT * INTO v_busy, v_tombstones, v_marks FROM take_heads(p_me, p_from || p_to);
    IF v_busy IS NOT NULL THEN
        v_free := items_without(v_busy, p_from, p_to);
        IF cardinality(v_free) > 0 THEN
            RETURN QUERY SELECT v_free[r.ord], r.verdict, r.to_pts, r.to_elsewhere, r.from_pts,
                    r.from_elsewhere, r.ws_sessions
                FROM apply_incoming(p_me, p_process, pick(p_from, v_free), pick(p_to, v_free),
                    pick(p_base, v_free), pick(p_type, v_free), pick(p_time, v_free),
                    pick(p_nonce, v_free), pick(p_rev, v_free), pick(p_reenc, v_free),
                    pick(p_sha, v_free), pick(p_blob, v_free), pick(p_source, v_free),
                    pick(p_ref_time, v_free), pick(p_ref_nonce, v_free),
                    pick(p_read_at, v_free), p_history) r;
        END IF;
        RETURN;
    END IF;
    v_now := now_ms();
    IF v_n > 1 THEN
        SELECT count(DISTINCT p_base[i] COLLATE "C" || p_type[i]::text) INTO v_distinct
        FROM generate_series(1, v_n) i;
        IF v_distinct < v_n THEN
            SELECT array_agg(prev ORDER BY i) INTO v_prev FROM (
                SELECT i, lag(i, 1, 0) OVER (PARTITION BY p_base[i] COLLATE "C", p_type[i] ORDER BY i)
                       AS prev
                FROM generate_series(1, v_n) i) x;
            FOR v_hi IN 1 .. v_n LOOP
                CONTINUE WHEN v_hi < v_n AND v_prev[v_hi + 1] < v_lo;
                RETURN QUERY SELECT r.ord + v_lo - 1, r.verdict, r.to_pts, r.to_elsewhere,
                        r.from_pts, r.from_elsewhere, r.ws_sessions
                    FROM apply_incoming(p_me, p_process, p_from[v_lo:v_hi], p_to[v_lo:v_hi],
                        p_base[v_lo:v_hi], p_type[v_lo:v_hi], p_time[v_lo:v_hi],
                        p_nonce[v_lo:v_hi], p_rev[v_lo:v_hi], p_reenc[v_lo:v_hi],
                        p_sha[v_lo:v_hi], p_blob[v_lo:v_hi], p_source[v_lo:v_hi],
                        p_ref_time[v_lo:v_hi], p_ref_nonce[v_lo:v_hi], p_read_at[v_lo:v_hi],
                        p_history) r;
                v_lo := v_hi + 1;
            END LOOP;
            RETURN;
        END IF;
    END IF;

    SELECT array_agg(verdict), array_agg(verdict > 0), array_agg(true),
           array_agg(from_served), array_agg(to_second), array_agg(from_second),
           array_agg(p_base[i] || '|' || (p_type[i] + 1)::text),
           bool_or(verdict = 0 AND (to_second IS NOT NULL OR from_second IS NOT NULL))
    INTO v_verdict, v_skip, v_to_served, v_from_served, v_to_second, v_from_second, v_out_key, v_any_second
    FROM (
        SELECT i,
            coalesce(p_me IN (f1.server_login, f2.server_login), false) AS from_served,
            CASE p_me WHEN f1.server_login THEN f2.server_login
                      WHEN f2.server_login THEN f1.server_login END AS from_second,
            CASE p_me WHEN t1.server_login THEN t2.server_login
                      WHEN t2.server_login THEN t1.server_login END AS to_second,
            CASE WHEN f1.login IS NULL AND NOT EXISTS (SELECT FROM users u WHERE u.login = p_from[i])
                   OR t1.login IS NULL AND NOT EXISTS (SELECT FROM users u WHERE u.login = p_to[i])
                 THEN 2
                 WHEN NOT coalesce(p_me IN (t1.server_login, t2.server_login), false) THEN 1
                 WHEN GREATEST(p_time[i], p_rev[i], p_reenc[i], p_read_at[i]) - v_now > 86400000 THEN 3
                 ELSE 0 END AS verdict
        FROM generate_series(1, v_n) i
        LEFT JOIN user_access_servers_current f1 ON f1.login = p_from[i] AND f1.slot = 1
        LEFT JOIN user_access_servers_current f2 ON f2.login = p_from[i] AND f2.slot = 2
        LEFT JOIN user_access_servers_current t1 ON t1.login = p_to[i] AND t1.slot = 1
        LEFT JOIN user_access_servers_current t2 ON t2.login = p_to[i] AND t2.slot = 2
        ORDER BY i) x;

    IF v_tombstones THEN
        v_not := covered_copies(1, v_to_served, p_from, p_to, p_base, p_type, p_time, p_ref_time,
                                p_ref_nonce);
    END IF;
    SELECT * INTO v_action, v_key, v_tell, v_cur_rev, v_cur_reenc, v_same
    FROM apply_copies(v_now, 1, 1, v_skip, v_not, v_to_served, v_marks, p_from, p_to, p_base, p_type,
                      p_time, p_nonce, p_rev, p_reenc, p_sha, p_blob, p_ref_time, p_ref_nonce);
    IF cardinality(p_read_at) > 0 AND 3 = ANY (p_type) THEN
        PERFORM apply_receipts(1, v_verdict, v_not, p_from, p_to, p_type, p_ref_time, p_ref_nonce,
                               p_read_at);
    END IF;
    IF p_history THEN
        v_tell := history_noted(v_tell, history_fresh(v_now, p_time, 1, p_rev, p_reenc), p_from, p_to);
    END IF;

    -- 2: the row's revision is overtaken, 3: it waited for exactly this copy.
    SELECT array_agg(d_act), array_agg(told), bool_or(d_act > 0), bool_or(told)
    INTO v_d_act, v_told, v_any_old, v_any_told
    FROM (
        SELECT a.d_act, a.d_act > 0 AND d.state <> 'delivered' AND p_type[i] = 1
                        AND v_from_served[i] AS told
        FROM generate_series(1, v_n) i
        LEFT JOIN dm_delivery_state d ON d.from_login = p_from[i] AND d.outgoing_key = v_out_key[i]
        CROSS JOIN LATERAL (SELECT (CASE
            WHEN v_skip[i] OR d.from_login IS NULL THEN 0
            WHEN v_not[i] IS NOT TRUE
                 AND (v_cur_rev[i], v_cur_reenc[i]) > (d.revision_time_ms, d.reencrypted_at_ms) THEN 2
            WHEN d.state = 'accepted' THEN 3 ELSE 0 END)::smallint AS d_act) a
        ORDER BY i) x;
    IF v_any_old THEN
        UPDATE dm_delivery_state d SET
            revision_time_ms = CASE WHEN v_d_act[i] = 2 THEN v_cur_rev[i] ELSE d.revision_time_ms END,
            reencrypted_at_ms = CASE WHEN v_d_act[i] = 2 THEN v_cur_reenc[i] ELSE d.reencrypted_at_ms END,
            state = 'delivered',
            attempt_no = CASE WHEN v_d_act[i] = 2 THEN 1 ELSE d.attempt_no END,
            accepted_at_ms = CASE WHEN v_d_act[i] = 2 THEN v_now ELSE d.accepted_at_ms END,
            claims = 0, next_attempt_at_ms = NULL, lease_owner = NULL, lease_until_ms = NULL,
            row_version = d.row_version + 1, delivered_via = p_me, last_error = NULL,
            updated_at_ms = v_now
        FROM generate_series(1, v_n) i
        WHERE v_d_act[i] > 0 AND d.from_login = p_from[i] AND d.outgoing_key = v_out_key[i];
    END IF;

    -- The recipient's own item, and the author's pair if it is kept here and its bytes changed.
    IF v_any_second THEN
        PERFORM put_outbox(v_now, array_agg(owner), array_agg(key), array_agg(also_owner),
            array_agg(also), array_agg(changed), array_agg(synced), array_agg(v_now))
        FROM (
            SELECT p_to[i] AS owner, v_key[i] AS key, NULL AS also_owner, NULL AS also,
                   v_action[i] > 0 AS changed,
                   p_source[i] IS NOT DISTINCT FROM v_to_second[i] AND v_same[i] AS synced
            FROM generate_series(1, v_n) i WHERE NOT v_skip[i] AND v_to_second[i] IS NOT NULL
            UNION ALL
            SELECT p_from[i], v_out_key[i], p_to[i], v_key[i], true, false
            FROM generate_series(1, v_n) i
            WHERE v_from_second[i] IS NOT NULL AND v_action[i] IN (1, 2, 4, 5)) x;
    END IF;

    v_ev_key := v_key;
    IF v_any_told THEN
        SELECT v_tell || array_agg(CASE WHEN v_told[i] THEN p_from[i] END),
               array_fill(1::smallint, ARRAY[v_n]) || array_fill(2::smallint, ARRAY[v_n]),
               v_ev_key || v_out_key
        INTO v_tell, v_kind, v_ev_key
        FROM generate_series(1, v_n) i;
    END IF;
    v_pts := append_events(v_now, v_tell, v_kind, v_ev_key);
    v_live := live_processes(v_now);

    RETURN QUERY
    SELECT i, v_verdict[i], CASE WHEN v_same[i] THEN v_pts[i] ELSE 0 END, coalesce(t.elsewhere, false),
           coalesce(v_pts[v_n + i], 0), coalesce(f.elsewhere, false), coalesce(t.n, 0)
    FROM generate_series(1, v_n) i
    LEFT JOIN LATERAL (
        SELECT count(*) AS n, bool_or(s.connected_to <> p_process) AS elsewhere
        FROM active_sessions s
        WHERE s.login = p_to[i] AND s.connected_to = ANY (v_live)) t ON v_pts[i] > 0
    LEFT JOIN LATERAL (
        SELECT bool_or(s.connected_to <> p_process) AS elsewhere
        FROM active_sessions s
        WHERE s.login = p_from[i] AND s.connected_to = ANY (v_live)) f ON v_pts[v_n + i] > 0;
END $$;
COMMENT ON FUNCTION apply_incoming(text, text, text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[], text[], bigint[], bigint[], bigint[], boolean) IS 'Apply incoming copies brought by servers, one row per copy.';
