-- Accepting pairs from their author (SendMessagePair, ReceiveOutcomingMessage).

-- One transaction for a batch: both copies, the delivery row, outbox rows, events. Arrays have one
-- element per pair, p_rev, p_reenc, p_sha and p_blob two (incoming, then outgoing). p_type is the
-- incoming type (1 or 3); p_ref_time, p_ref_nonce and p_read_at are the bodies of receipts, two per
-- pair (those that a server brings may differ), empty if there are none. One row per pair comes back;
-- `ord` counts from 1.
--
-- verdict: 0 stored (or nothing to change, or covered by tombstones), 1 not served here, 2 unknown
-- user, 3 a time is too far ahead, 4 a client's pair of which both copies are covered. Other columns are
-- meaningful for verdict 0 only. `state` is the state after the call. `attempt`: the row is new work,
-- leased to p_process until lease_ms from now. from_pts, to_pts: the event that shows the copy as it
-- came; 0 if there is none (other events are found by reading).
--
-- A pair that occurs twice in a batch gives what one call after the other would give: the batch is
-- cut before each repetition and the parts are applied in order, under heads locked for all.
--
-- d_act, what happens to the delivery row: 0 nothing; 1 new; 2 reset, because the incoming copy has a
-- newer revision than the row; 3 turned delivered, because this server has come to serve the
-- recipient and the courier copy became his, or because of a proof; 4 removed.
--
-- p_history: a page of the author's second server (history.sql). There the incoming copy may be missing
-- (its p_sha and p_blob are NULL), and p_proof tells which pairs that server says are delivered, in the
-- revision that came.
--
-- Longer than other functions: steps share a dozen arrays, and each step is one statement.
--
-- With shine.heads = skip, items whose heads somebody holds are left out: no row, nothing done
-- (take_heads()).
CREATE OR REPLACE FUNCTION accept_pairs(
    p_me text, p_process text,
    p_from text[], p_to text[], p_base text[], p_type integer[], p_time bigint[], p_nonce bigint[],
    p_rev bigint[], p_reenc bigint[], p_sha bytea[], p_blob bytea[],
    p_from_server boolean[], p_source text[], p_max_future bigint[], p_session text[],
    p_ref_time bigint[] DEFAULT '{}', p_ref_nonce bigint[] DEFAULT '{}',
    p_read_at bigint[] DEFAULT '{}', p_history boolean DEFAULT false,
    p_proof boolean[] DEFAULT '{}')
RETURNS TABLE (ord integer, verdict integer, state text, from_pts bigint, from_elsewhere boolean,
    to_pts bigint, to_elsewhere boolean, ws_sessions bigint, attempt boolean, row_version bigint,
    lease_ms bigint, route1 text, url1 text, route2 text, url2 text)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_lease bigint := (delivery_schedule())[2];
    v_n integer := cardinality(p_base);
    -- per pair
    v_verdict integer[];
    v_skip boolean[];
    v_to_served boolean[];
    v_from_second text[];
    v_route1 text[]; v_url1 text[]; v_route2 text[]; v_url2 text[];
    v_state text[]; v_d_act smallint[]; v_version bigint[]; v_told boolean[];
    v_tombstones boolean; v_marks boolean;
    v_any_second boolean; v_any_new boolean; v_any_old boolean; v_any_told boolean;
    v_any_gone boolean;
    v_accepted bigint[]; v_slot smallint[]; v_fresh boolean[]; v_proved boolean[];
    -- per copy
    v_not boolean[];
    v_action smallint[]; v_key text[]; v_tell text[]; v_kind smallint[]; v_cur_rev bigint[]; v_cur_reenc bigint[]; v_same boolean[];
    v_pts bigint[];
    v_live text[]; v_any_attempt boolean; v_end bigint;
    -- leaving out whose head is held
    v_busy text[]; v_free integer[];
    -- cutting at repetitions
    v_distinct integer; v_prev integer[]; v_lo integer := 1;
BEGIN
    SELECT * INTO v_busy, v_tombstones, v_marks FROM take_heads(p_me, p_from || p_to);
    IF v_busy IS NOT NULL THEN
        v_free := items_without(v_busy, p_from, p_to);
        IF cardinality(v_free) > 0 THEN
            RETURN QUERY SELECT v_free[r.ord], r.verdict, r.state, r.from_pts, r.from_elsewhere,
                    r.to_pts, r.to_elsewhere, r.ws_sessions, r.attempt, r.row_version, r.lease_ms,
                    r.route1, r.url1, r.route2, r.url2
                FROM accept_pairs(p_me, p_process, pick(p_from, v_free), pick(p_to, v_free),
                    pick(p_base, v_free), pick(p_type, v_free), pick(p_time, v_free),
                    pick(p_nonce, v_free), pick(p_rev, v_free, 2), pick(p_reenc, v_free, 2),
                    pick(p_sha, v_free, 2), pick(p_blob, v_free, 2), pick(p_from_server, v_free),
                    pick(p_source, v_free), pick(p_max_future, v_free), pick(p_session, v_free),
                    pick(p_ref_time, v_free, 2), pick(p_ref_nonce, v_free, 2),
                    pick(p_read_at, v_free, 2), p_history, pick(p_proof, v_free)) r;
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
                RETURN QUERY SELECT r.ord + v_lo - 1, r.verdict, r.state, r.from_pts,
                        r.from_elsewhere, r.to_pts, r.to_elsewhere, r.ws_sessions, r.attempt,
                        r.row_version, r.lease_ms, r.route1, r.url1, r.route2, r.url2
                    FROM accept_pairs(p_me, p_process, p_from[v_lo:v_hi], p_to[v_lo:v_hi],
                        p_base[v_lo:v_hi], p_type[v_lo:v_hi], p_time[v_lo:v_hi],
                        p_nonce[v_lo:v_hi], p_rev[2 * v_lo - 1 : 2 * v_hi],
                        p_reenc[2 * v_lo - 1 : 2 * v_hi], p_sha[2 * v_lo - 1 : 2 * v_hi],
                        p_blob[2 * v_lo - 1 : 2 * v_hi], p_from_server[v_lo:v_hi],
                        p_source[v_lo:v_hi], p_max_future[v_lo:v_hi], p_session[v_lo:v_hi],
                        p_ref_time[2 * v_lo - 1 : 2 * v_hi],
                        p_ref_nonce[2 * v_lo - 1 : 2 * v_hi],
                        p_read_at[2 * v_lo - 1 : 2 * v_hi], p_history, p_proof[v_lo:v_hi]) r;
                v_lo := v_hi + 1;
            END LOOP;
            RETURN;
        END IF;
    END IF;

    -- Who is served, read under the locked heads: a change of servers takes the head, too.
    SELECT array_agg(verdict), array_agg(verdict > 0), array_agg(to_served), array_agg(from_second),
           array_agg(r1), array_agg(u1), array_agg(r2), array_agg(u2),
           bool_or(verdict = 0 AND (from_second IS NOT NULL OR to_served AND r2 IS NOT NULL))
    INTO v_verdict, v_skip, v_to_served, v_from_second, v_route1, v_url1, v_route2, v_url2,
         v_any_second
    FROM (
        SELECT t1.server_login AS r1, t1.url AS u1, t2.server_login AS r2, t2.url AS u2,
            coalesce(p_me IN (t1.server_login, t2.server_login), false) AS to_served,
            CASE p_me WHEN f1.server_login THEN f2.server_login
                      WHEN f2.server_login THEN f1.server_login END AS from_second,
            CASE WHEN f1.login IS NULL AND NOT EXISTS (SELECT FROM users u WHERE u.login = p_from[i])
                   OR t1.login IS NULL AND NOT EXISTS (SELECT FROM users u WHERE u.login = p_to[i])
                 THEN 2
                 WHEN NOT coalesce(p_me IN (f1.server_login, f2.server_login), false) THEN 1
                 WHEN GREATEST(p_time[i], p_rev[2 * i - 1], p_rev[2 * i], p_reenc[2 * i - 1],
                               p_reenc[2 * i], p_read_at[2 * i - 1], p_read_at[2 * i]) - v_now
                      > CASE WHEN p_from_server[i] THEN 86400000 ELSE p_max_future[i] END THEN 3
                 ELSE 0 END AS verdict
        FROM generate_series(1, v_n) i
        LEFT JOIN user_access_servers_current f1 ON f1.login = p_from[i] AND f1.slot = 1
        LEFT JOIN user_access_servers_current f2 ON f2.login = p_from[i] AND f2.slot = 2
        LEFT JOIN user_access_servers_current t1 ON t1.login = p_to[i] AND t1.slot = 1
        LEFT JOIN user_access_servers_current t2 ON t2.login = p_to[i] AND t2.slot = 2
        ORDER BY i) x;

    IF v_tombstones THEN
        v_not := covered_copies(2, v_to_served, p_from, p_to, p_base, p_type, p_time, p_ref_time,
                                p_ref_nonce);
        SELECT array_agg(verdict), array_agg(verdict > 0) INTO v_verdict, v_skip
        FROM (SELECT CASE WHEN v_verdict[i] = 0 AND v_not[2 * i - 1] AND v_not[2 * i]
                               AND NOT p_from_server[i] THEN 4 ELSE v_verdict[i] END AS verdict
              FROM generate_series(1, v_n) i ORDER BY i) x;
    END IF;
    IF p_history AND array_position(p_sha, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce(v_not[c], false) OR p_sha[c] IS NULL ORDER BY c) INTO v_not
        FROM generate_series(1, 2 * v_n) c;
    END IF;
    SELECT * INTO v_action, v_key, v_tell, v_cur_rev, v_cur_reenc, v_same
    FROM apply_copies(v_now, 2, 1, v_skip, v_not, v_to_served, v_marks, p_from, p_to, p_base, p_type,
                      p_time, p_nonce, p_rev, p_reenc, p_sha, p_blob, p_ref_time, p_ref_nonce);
    IF cardinality(p_read_at) > 0 AND 3 = ANY (p_type) THEN
        PERFORM apply_receipts(2, v_verdict, v_not, p_from, p_to, p_type, p_ref_time, p_ref_nonce,
                               p_read_at);
    END IF;

    IF p_history THEN
        v_fresh := history_fresh(v_now, p_time, 2, p_rev, p_reenc);
        v_tell := history_noted(v_tell, v_fresh, p_from, p_to);
        -- A receipt for it proves as much as the other server's word.
        SELECT array_agg(coalesce(p_proof[i], false) OR m.read_at_ms IS NOT NULL ORDER BY i)
        INTO v_proved
        FROM generate_series(1, v_n) i
        LEFT JOIN signed_messages m ON m.owner_login = p_from[i] AND m.message_key = v_key[2 * i];
        v_cur_rev := ARRAY(SELECT coalesce(v_cur_rev[c], p_rev[c])
                           FROM generate_series(1, 2 * v_n) c ORDER BY c);
        v_cur_reenc := ARRAY(SELECT coalesce(v_cur_reenc[c], p_reenc[c])
                             FROM generate_series(1, 2 * v_n) c ORDER BY c);
        -- The schedule began when the message was made.
        SELECT o_accepted, o_slot INTO v_accepted, v_slot
        FROM history_schedule(v_now, p_time, 2, p_rev, p_reenc);
    END IF;

    -- The delivery rows. A repeat of what is stored finds d_act 0, whatever state the row is in.
    SELECT array_agg(new_state), array_agg(d_act), array_agg(version),
           array_agg(told), bool_or(d_act = 1), bool_or(d_act IN (2, 3)), bool_or(d_act = 4),
           bool_or(told), bool_or(d_act IN (1, 2) AND new_state = 'accepted')
    INTO v_state, v_d_act, v_version, v_told, v_any_new, v_any_old, v_any_gone, v_any_told,
         v_any_attempt
    FROM (
        SELECT a.d_act,
               CASE WHEN a.d_act = 0 THEN coalesce(d.state, 'accepted')
                    WHEN v_to_served[i] OR h.proved THEN 'delivered' ELSE 'accepted' END AS new_state,
               CASE WHEN a.d_act = 0 THEN d.row_version ELSE coalesce(d.row_version, 0) + 1 END
               AS version,
               -- An outgoing copy that changed shows the state in its own event; nobody asks for that
               -- of one which he has deleted.
               a.d_act BETWEEN 1 AND 3 AND (v_to_served[i] OR h.proved)
               AND d.state IS DISTINCT FROM 'delivered'
               AND v_action[2 * i] = 0 AND p_type[i] = 1 AND v_not[2 * i] IS NOT TRUE AS told
        FROM generate_series(1, v_n) i
        LEFT JOIN dm_delivery_state d ON d.from_login = p_from[i] AND d.outgoing_key = v_key[2 * i]
        -- History of somebody served elsewhere: proved delivered, or no row at all, unless it is so
        -- fresh that the schedule still runs and there is something to carry.
        CROSS JOIN LATERAL (SELECT p_history AND v_proved[i]
            AND (NOT v_fresh[i] OR p_sha[2 * i - 1] IS NULL) AS proved OFFSET 0) h
        CROSS JOIN LATERAL (SELECT p_history AND NOT v_to_served[i] AND NOT h.proved
            AND (NOT v_fresh[i] OR p_sha[2 * i - 1] IS NULL) AS no_row OFFSET 0) q
        CROSS JOIN LATERAL (SELECT (CASE
            WHEN h.proved AND NOT v_skip[i] AND d.state = 'accepted'
                 AND (d.revision_time_ms, d.reencrypted_at_ms)
                     = (v_cur_rev[2 * i - 1], v_cur_reenc[2 * i - 1]) THEN 3
            -- A repeat, unless it is the first one of which the author's copy was ever here: his
            -- tombstone was faster, and the recipient's copy came by itself.
            WHEN v_action[2 * i - 1] = 0 AND v_action[2 * i] = 0
                 AND (d.from_login IS NOT NULL OR v_skip[i] OR v_not[2 * i] IS NOT TRUE
                      OR v_not[2 * i - 1]) THEN 0
            -- A courier copy whose new owner had deleted it is gone, and with it all there was to carry.
            WHEN v_not[2 * i - 1] AND v_not[2 * i] THEN 0
            WHEN d.from_login IS NULL THEN CASE WHEN q.no_row THEN 0 ELSE 1 END
            WHEN (v_cur_rev[2 * i - 1], v_cur_reenc[2 * i - 1])
                 > (d.revision_time_ms, d.reencrypted_at_ms)
            THEN CASE WHEN q.no_row THEN 4 ELSE 2 END
            WHEN v_to_served[i] AND d.state = 'accepted' THEN 3
            ELSE 0 END)::smallint AS d_act) a
        ORDER BY i) x;
    IF v_any_new THEN
        INSERT INTO dm_delivery_state (from_login, outgoing_key, base_key, incoming_key, to_login,
            revision_time_ms, reencrypted_at_ms, state, attempt_no, accepted_at_ms,
            next_attempt_at_ms, route_hint, lease_owner, lease_until_ms, delivered_via,
            updated_at_ms)
        SELECT p_from[i], v_key[2 * i], p_base[i], v_key[2 * i - 1], p_to[i],
               v_cur_rev[2 * i - 1], v_cur_reenc[2 * i - 1], v_state[i],
               CASE WHEN w.waits THEN coalesce(v_slot[i], 1) ELSE 1 END,
               CASE WHEN w.waits THEN coalesce(v_accepted[i], v_now) ELSE v_now END,
               CASE WHEN w.waits THEN CASE WHEN w.first THEN v_now + v_lease ELSE v_now END END,
               coalesce(v_route1[i], ''),
               CASE WHEN w.first THEN p_process END, CASE WHEN w.first THEN v_now + v_lease END,
               CASE WHEN v_to_served[i] THEN p_me WHEN NOT w.waits THEN p_source[i] END, v_now
        FROM generate_series(1, v_n) i,
             LATERAL (SELECT v_state[i] = 'accepted' AS waits,
                             v_state[i] = 'accepted' AND NOT p_from_server[i] AS first OFFSET 0) w
        WHERE v_d_act[i] = 1;
    END IF;
    IF v_any_old THEN
        -- attempt_no and accepted_at_ms of a row that only turned delivered stay as they were.
        UPDATE dm_delivery_state d SET
            revision_time_ms = CASE WHEN v_d_act[i] = 2 THEN v_cur_rev[2 * i - 1]
                                    ELSE d.revision_time_ms END,
            reencrypted_at_ms = CASE WHEN v_d_act[i] = 2 THEN v_cur_reenc[2 * i - 1]
                                     ELSE d.reencrypted_at_ms END,
            state = v_state[i],
            attempt_no = CASE WHEN v_d_act[i] = 3 THEN d.attempt_no
                              WHEN w.waits THEN coalesce(v_slot[i], 1) ELSE 1 END,
            accepted_at_ms = CASE WHEN v_d_act[i] = 3 THEN d.accepted_at_ms
                                  WHEN w.waits THEN coalesce(v_accepted[i], v_now) ELSE v_now END,
            claims = 0,
            next_attempt_at_ms = CASE WHEN w.waits THEN CASE WHEN w.first THEN v_now + v_lease
                                                             ELSE v_now END END,
            route_hint = coalesce(v_route1[i], ''),
            lease_owner = CASE WHEN w.first THEN p_process END,
            lease_until_ms = CASE WHEN w.first THEN v_now + v_lease END,
            row_version = v_version[i],
            delivered_via = CASE WHEN v_to_served[i] THEN p_me WHEN NOT w.waits THEN p_source[i] END,
            last_error = NULL, updated_at_ms = v_now
        FROM generate_series(1, v_n) i,
             LATERAL (SELECT v_state[i] = 'accepted' AS waits,
                             v_state[i] = 'accepted' AND NOT p_from_server[i] AS first OFFSET 0) w
        WHERE v_d_act[i] IN (2, 3) AND d.from_login = p_from[i] AND d.outgoing_key = v_key[2 * i];
    END IF;

    IF v_any_gone THEN
        DELETE FROM dm_delivery_state d USING generate_series(1, v_n) i
        WHERE v_d_act[i] = 4 AND d.from_login = p_from[i] AND d.outgoing_key = v_key[2 * i];
    END IF;

    IF v_any_second THEN
        PERFORM put_outbox(v_now, array_agg(owner), array_agg(v_key[c]),
            array_agg(CASE WHEN c % 2 = 0 THEN p_to[c / 2] END),
            array_agg(CASE WHEN c % 2 = 0 THEN v_key[c - 1] END),
            array_agg(changed), array_agg(synced), array_agg(push_due))
        FROM (
            SELECT c, CASE WHEN c % 2 = 0 THEN p_from[i] ELSE p_to[i] END AS owner,
                   CASE WHEN c % 2 = 0 THEN v_action[c] IN (1, 2, 4) OR v_action[c - 1] IN (1, 2, 4, 5)
                        ELSE v_action[c] > 0 END AS changed,
                   p_source[i] IS NOT DISTINCT FROM s.second AND v_same[c]
                   AND (c % 2 = 1 OR v_same[c - 1]) AS synced,
                   -- The second server gets a pair after the first attempt.
                   CASE WHEN c % 2 = 0 AND v_d_act[i] IN (1, 2) AND NOT v_to_served[i]
                             AND NOT p_from_server[i] THEN v_now + v_lease ELSE v_now END AS push_due
            FROM generate_series(1, 2 * v_n) c, LATERAL (SELECT (c + 1) / 2 AS i OFFSET 0) k,
                 LATERAL (SELECT CASE WHEN c % 2 = 0 THEN v_from_second[i]
                                      WHEN NOT v_to_served[i] THEN NULL
                                      WHEN v_route1[i] = p_me THEN v_route2[i]
                                      ELSE v_route1[i] END AS second OFFSET 0) s
            WHERE NOT v_skip[i] AND s.second IS NOT NULL
            ORDER BY c) x;
    END IF;

    -- Events: the incoming copy before the outgoing one; state changes after all copies.
    IF v_any_told THEN
        SELECT v_tell || array_agg(CASE WHEN v_told[i] THEN p_from[i] END),
               array_fill(1::smallint, ARRAY[2 * v_n]) || array_fill(2::smallint, ARRAY[v_n]),
               v_key || array_agg(v_key[2 * i])
        INTO v_tell, v_kind, v_key
        FROM generate_series(1, v_n) i;
    END IF;
    v_pts := append_events(v_now, v_tell, v_kind, v_key);
    v_live := live_processes(v_now);
    v_end := CASE WHEN v_any_attempt THEN now_ms() ELSE v_now END;

    RETURN QUERY
    SELECT i, v_verdict[i], v_state[i], v_pts[2 * i], coalesce(f.elsewhere, false),
           CASE WHEN v_same[2 * i - 1] THEN v_pts[2 * i - 1] ELSE 0 END, coalesce(t.elsewhere, false),
           coalesce(f.n, 0) + CASE WHEN p_to[i] = p_from[i] AND f.n IS NOT NULL THEN 0
                                   ELSE coalesce(t.n, 0) END,
           e.attempt, v_version[i], CASE WHEN e.attempt THEN v_lease - (v_end - v_now) END,
           CASE WHEN e.attempt THEN v_route1[i] END, CASE WHEN e.attempt THEN v_url1[i] END,
           CASE WHEN e.attempt THEN v_route2[i] END, CASE WHEN e.attempt THEN v_url2[i] END
    FROM generate_series(1, v_n) i
    CROSS JOIN LATERAL (SELECT
        GREATEST(v_pts[2 * i], v_pts[2 * v_n + i]) AS from_pts,
        v_d_act[i] IN (1, 2) AND NOT v_to_served[i] AND NOT p_from_server[i] AS attempt OFFSET 0) e
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.session_id IS DISTINCT FROM p_session[i]) AS n,
               bool_or(s.connected_to <> p_process) AS elsewhere
        FROM active_sessions s
        WHERE s.login = p_from[i] AND s.connected_to = ANY (v_live)) f ON e.from_pts > 0
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.session_id IS DISTINCT FROM p_session[i]) AS n,
               bool_or(s.connected_to <> p_process) AS elsewhere
        FROM active_sessions s
        WHERE s.login = p_to[i] AND s.connected_to = ANY (v_live)) t ON v_pts[2 * i - 1] > 0;
END $$;
COMMENT ON FUNCTION accept_pairs(text, text, text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[], boolean[], text[], bigint[], text[], bigint[], bigint[], bigint[], boolean, boolean[]) IS 'Accept pairs of copies from their authors, one row per pair.';
