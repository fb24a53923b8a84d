-- Applying tombstones (DeleteMessage, DeleteConversation): types 5 and 7 for both parties, 6 and 8 for
-- their author alone.

-- Arrays have one element per tombstone. p_ref_by_to, p_ref_time and p_ref_nonce name the text of types
-- 5 and 6, p_until is the time of types 7 and 8; the others mean nothing there. Columns of the result
-- as in accept_pairs. verdict: 0 applied or nothing to change, 1 neither party (6, 8: not the author)
-- is served here, 2 unknown user, 3 a time is too far ahead.
--
-- A tombstone is stored for each of its holders served here: the author, and for types 5 and 7 the
-- other party. It has effect also when its bytes lose against others under the same key, so that the
-- result depends only on the set of tombstones that ever came. A delivery row is made where the author
-- is served and the other party is somebody else.
--
-- p_history, p_proof: as in accept_pairs.
--
-- Longer than other functions, as accept_pairs.
--
-- With shine.heads = skip, items whose heads somebody holds are left out: no row, nothing done
-- (take_heads()).
CREATE OR REPLACE FUNCTION apply_tombstones(
    p_me text, p_process text,
    p_from text[], p_to text[], p_base text[], p_type integer[], p_time bigint[], p_nonce bigint[],
    p_sha bytea[], p_blob bytea[], p_ref_by_to boolean[], p_ref_time bigint[], p_ref_nonce bigint[],
    p_until bigint[],
    p_from_server boolean[], p_source text[], p_max_future bigint[], p_session text[],
    p_history boolean DEFAULT false, p_proof boolean[] DEFAULT '{}')
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
    -- per tombstone
    v_verdict integer[]; v_skip boolean[]; v_from_served boolean[]; v_to_served boolean[];
    v_from_second text[]; v_to_second text[];
    v_route1 text[]; v_url1 text[]; v_route2 text[]; v_url2 text[];
    v_state text[]; v_d_act smallint[]; v_version bigint[];
    v_any_second boolean; v_any_row boolean;
    v_fresh boolean[]; v_accepted bigint[]; v_slot smallint[];
    -- per copy: the other party's, then the author's
    v_not boolean[]; v_sha bytea[]; v_blob bytea[]; v_zero bigint[];
    v_action smallint[]; v_key text[]; v_tell text[]; v_same boolean[];
    -- per holder of copies that go
    v_owner text[]; v_with text[]; v_both boolean[]; v_held boolean[]; v_ref text[]; v_until bigint[];
    v_ref_time bigint[]; v_ref_nonce bigint[]; v_reader text[];
    v_pts bigint[];
    v_live text[]; v_end bigint;
    -- leaving out whose head is held
    v_busy text[]; v_free integer[];
    -- cutting at repetitions
    v_distinct integer; v_prev integer[]; v_lo integer := 1;
BEGIN
    v_busy := (take_heads(p_me, p_from || p_to)).o_busy;
    IF v_busy IS NOT NULL THEN
        v_free := items_without(v_busy, p_from, p_to);
        IF cardinality(v_free) > 0 THEN
            RETURN QUERY SELECT v_free[r.ord], r.verdict, r.state, r.from_pts, r.from_elsewhere,
                    r.to_pts, r.to_elsewhere, r.ws_sessions, r.attempt, r.row_version, r.lease_ms,
                    r.route1, r.url1, r.route2, r.url2
                FROM apply_tombstones(p_me, p_process, pick(p_from, v_free), pick(p_to, v_free),
                    pick(p_base, v_free), pick(p_type, v_free), pick(p_time, v_free),
                    pick(p_nonce, v_free), pick(p_sha, v_free), pick(p_blob, v_free),
                    pick(p_ref_by_to, v_free), pick(p_ref_time, v_free),
                    pick(p_ref_nonce, v_free), pick(p_until, v_free),
                    pick(p_from_server, v_free), pick(p_source, v_free),
                    pick(p_max_future, v_free), pick(p_session, v_free),
                    p_history, pick(p_proof, v_free)) r;
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
                    FROM apply_tombstones(p_me, p_process, p_from[v_lo:v_hi], p_to[v_lo:v_hi],
                        p_base[v_lo:v_hi], p_type[v_lo:v_hi], p_time[v_lo:v_hi],
                        p_nonce[v_lo:v_hi], p_sha[v_lo:v_hi], p_blob[v_lo:v_hi],
                        p_ref_by_to[v_lo:v_hi], p_ref_time[v_lo:v_hi], p_ref_nonce[v_lo:v_hi],
                        p_until[v_lo:v_hi], p_from_server[v_lo:v_hi], p_source[v_lo:v_hi],
                        p_max_future[v_lo:v_hi], p_session[v_lo:v_hi], p_history,
                        p_proof[v_lo:v_hi]) r;
                v_lo := v_hi + 1;
            END LOOP;
            RETURN;
        END IF;
    END IF;

    SELECT array_agg(verdict), array_agg(verdict > 0), array_agg(from_served), array_agg(to_served),
           array_agg(from_second), array_agg(to_second),
           array_agg(r1), array_agg(u1), array_agg(r2), array_agg(u2),
           bool_or(verdict = 0 AND (from_second IS NOT NULL OR to_second IS NOT NULL))
    INTO v_verdict, v_skip, v_from_served, v_to_served, v_from_second, v_to_second,
         v_route1, v_url1, v_route2, v_url2, v_any_second
    FROM (
        SELECT t1.server_login AS r1, t1.url AS u1, t2.server_login AS r2, t2.url AS u2,
            s.from_served, s.to_served,
            CASE p_me WHEN f1.server_login THEN f2.server_login
                      WHEN f2.server_login THEN f1.server_login END AS from_second,
            CASE p_me WHEN t1.server_login THEN t2.server_login
                      WHEN t2.server_login THEN t1.server_login END AS to_second,
            CASE WHEN f1.login IS NULL AND NOT EXISTS (SELECT FROM users u WHERE u.login = p_from[i])
                   OR t1.login IS NULL AND NOT EXISTS (SELECT FROM users u WHERE u.login = p_to[i])
                 THEN 2
                 WHEN NOT s.from_served AND NOT (s.to_served AND p_type[i] IN (5, 7)) THEN 1
                 WHEN p_time[i] - v_now > CASE WHEN p_from_server[i] THEN 86400000
                                               ELSE p_max_future[i] END
                   OR p_type[i] IN (7, 8) AND p_until[i] > v_now AND NOT p_from_server[i] THEN 3
                 ELSE 0 END AS verdict
        FROM generate_series(1, v_n) i
        LEFT JOIN user_access_servers_current f1 ON f1.login = p_from[i] AND f1.slot = 1
        LEFT JOIN user_access_servers_current f2 ON f2.login = p_from[i] AND f2.slot = 2
        LEFT JOIN user_access_servers_current t1 ON t1.login = p_to[i] AND t1.slot = 1
        LEFT JOIN user_access_servers_current t2 ON t2.login = p_to[i] AND t2.slot = 2
        CROSS JOIN LATERAL (SELECT
            coalesce(p_me IN (f1.server_login, f2.server_login), false) AS from_served,
            coalesce(p_me IN (t1.server_login, t2.server_login), false) AS to_served OFFSET 0) s
        ORDER BY i) x;

    SELECT array_agg(CASE WHEN c % 2 = 0 THEN NOT v_from_served[i]
                          ELSE NOT (v_to_served[i] AND p_type[i] IN (5, 7) AND p_from[i] <> p_to[i]) END),
           array_agg(p_sha[i]), array_agg(p_blob[i]), array_agg(0::bigint)
    INTO v_not, v_sha, v_blob, v_zero
    FROM (SELECT c, (c + 1) / 2 AS i FROM generate_series(1, 2 * v_n) c ORDER BY c) x;
    SELECT o_action, o_key, o_tell, o_same INTO v_action, v_key, v_tell, v_same
    FROM apply_copies(v_now, 2, 0, v_skip, v_not, v_to_served, false, p_from, p_to, p_base, p_type,
                      p_time, p_nonce, v_zero, v_zero, v_sha, v_blob, '{}', '{}');

    IF p_history THEN
        v_fresh := history_fresh(v_now, p_time, 1, NULL, NULL);
        v_tell := history_noted(v_tell, v_fresh, p_from, p_to);
        SELECT o_accepted, o_slot INTO v_accepted, v_slot
        FROM history_schedule(v_now, p_time, 1, NULL, NULL);
    END IF;

    -- Their effects. One that is stored already, with the same bytes, has had them.
    SELECT array_agg(owner), array_agg(partner), array_agg(p_type[i] IN (5, 7)), array_agg(held),
           array_agg(ref), array_agg(p_until[i]), array_agg(p_ref_time[i]), array_agg(p_ref_nonce[i]),
           array_agg(reader)
    INTO v_owner, v_with, v_both, v_held, v_ref, v_until, v_ref_time, v_ref_nonce, v_reader
    FROM (
        SELECT i, CASE c % 2 WHEN 0 THEN p_from[i] ELSE p_to[i] END AS owner,
               CASE c % 2 WHEN 0 THEN p_to[i] ELSE p_from[i] END AS partner,
               CASE c % 2 WHEN 0 THEN v_from_served[i] ELSE v_to_served[i] END AS held,
               CASE WHEN p_type[i] IN (5, 6) THEN
                   CASE WHEN p_ref_by_to[i] THEN p_to[i] || '|' || p_from[i]
                        ELSE p_from[i] || '|' || p_to[i] END || '|' || p_ref_time[i] || '|' || p_ref_nonce[i]
               END AS ref,
               CASE WHEN p_ref_by_to[i] THEN p_from[i] ELSE p_to[i] END AS reader
        FROM (SELECT c, (c + 1) / 2 AS i FROM generate_series(1, 2 * v_n) c) y
        WHERE NOT v_skip[i]
          AND (v_action[2 * i - 1] > 0 OR v_action[2 * i] > 0 OR NOT v_same[2 * i - 1] OR NOT v_same[2 * i])
          AND (c % 2 = 0 OR p_type[i] IN (5, 7) AND p_from[i] <> p_to[i])) x;
    IF v_owner IS NOT NULL THEN
        PERFORM record_tombstones(array_agg(v_owner[s]), array_agg(v_with[s]), array_agg(v_both[s]),
                                  array_agg(v_ref[s]), array_agg(v_until[s]))
        FROM generate_series(1, cardinality(v_owner)) s WHERE v_held[s];
        PERFORM remove_covered(v_owner, v_with, v_both, v_ref, v_until, v_ref_time, v_ref_nonce,
                               v_reader);
    END IF;

    -- Delivery rows; d_act as in accept_pairs, and there is one revision only.
    SELECT array_agg(new_state), array_agg(d_act), array_agg(version), bool_or(d_act > 0)
    INTO v_state, v_d_act, v_version, v_any_row
    FROM (
        SELECT a.d_act,
               CASE WHEN a.d_act = 0 THEN coalesce(d.state, 'accepted')
                    WHEN v_to_served[i] OR h.proved THEN 'delivered' ELSE 'accepted' END AS new_state,
               CASE WHEN a.d_act = 0 THEN d.row_version ELSE coalesce(d.row_version, 0) + 1 END
               AS version
        FROM generate_series(1, v_n) i
        LEFT JOIN dm_delivery_state d ON d.from_login = p_from[i] AND d.outgoing_key = v_key[2 * i]
        CROSS JOIN LATERAL (SELECT p_history AND NOT v_fresh[i] AND coalesce(p_proof[i], false)
                                   AS proved OFFSET 0) h
        CROSS JOIN LATERAL (SELECT (CASE
            WHEN h.proved AND NOT v_skip[i] AND d.state = 'accepted' THEN 3
            WHEN v_skip[i] OR NOT v_from_served[i] OR p_type[i] NOT IN (5, 7) OR p_from[i] = p_to[i]
              OR v_action[2 * i - 1] = 0 AND v_action[2 * i] = 0 THEN 0
            WHEN d.from_login IS NULL
            THEN CASE WHEN p_history AND NOT v_to_served[i] AND NOT h.proved AND NOT v_fresh[i] THEN 0
                      ELSE 1 END
            WHEN v_to_served[i] AND d.state = 'accepted' THEN 3
            ELSE 0 END)::smallint AS d_act) a
        ORDER BY i) x;
    IF v_any_row THEN
        INSERT INTO dm_delivery_state (from_login, outgoing_key, base_key, incoming_key, to_login,
            revision_time_ms, reencrypted_at_ms, state, attempt_no, accepted_at_ms,
            next_attempt_at_ms, route_hint, lease_owner, lease_until_ms, delivered_via,
            updated_at_ms)
        SELECT p_from[i], v_key[2 * i], p_base[i], v_key[2 * i], p_to[i], 0, 0, v_state[i],
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
        UPDATE dm_delivery_state d SET state = 'delivered', claims = 0, next_attempt_at_ms = NULL,
            lease_owner = NULL, lease_until_ms = NULL, row_version = v_version[i],
            delivered_via = CASE WHEN v_to_served[i] THEN p_me ELSE p_source[i] END,
            last_error = NULL, updated_at_ms = v_now
        FROM generate_series(1, v_n) i
        WHERE v_d_act[i] = 3 AND d.from_login = p_from[i] AND d.outgoing_key = v_key[2 * i];
    END IF;

    IF v_any_second THEN
        PERFORM put_outbox(v_now, array_agg(owner), array_agg(v_key[c]), array_agg(NULL::text),
            array_agg(NULL::text), array_agg(v_action[c] > 0), array_agg(synced), array_agg(push_due))
        FROM (
            SELECT c, CASE c % 2 WHEN 0 THEN p_from[i] ELSE p_to[i] END AS owner,
                   p_source[i] IS NOT DISTINCT FROM s.second AND v_same[c] AS synced,
                   CASE WHEN c % 2 = 0 AND v_d_act[i] = 1 AND NOT v_to_served[i]
                             AND NOT p_from_server[i] THEN v_now + v_lease ELSE v_now END AS push_due
            FROM generate_series(1, 2 * v_n) c, LATERAL (SELECT (c + 1) / 2 AS i OFFSET 0) k,
                 LATERAL (SELECT CASE c % 2 WHEN 0 THEN v_from_second[i] ELSE v_to_second[i] END
                                 AS second OFFSET 0) s
            WHERE NOT v_skip[i] AND NOT v_not[c] AND s.second IS NOT NULL
            ORDER BY c) x;
    END IF;
    v_pts := append_events(v_now, v_tell, NULL, v_key);
    v_live := live_processes(v_now);
    v_end := CASE WHEN v_any_row THEN now_ms() ELSE v_now END;

    RETURN QUERY
    SELECT i, v_verdict[i], v_state[i],
           CASE WHEN v_same[2 * i] THEN v_pts[2 * i] ELSE 0 END, coalesce(f.elsewhere, false),
           CASE WHEN v_same[2 * i - 1] THEN v_pts[2 * i - 1] ELSE 0 END, coalesce(t.elsewhere, false),
           coalesce(f.n, 0) + coalesce(t.n, 0),
           e.attempt, v_version[i], CASE WHEN e.attempt THEN v_lease - (v_end - v_now) END,
           CASE WHEN e.attempt THEN v_route1[i] END, CASE WHEN e.attempt THEN v_url1[i] END,
           CASE WHEN e.attempt THEN v_route2[i] END, CASE WHEN e.attempt THEN v_url2[i] END
    FROM generate_series(1, v_n) i
    CROSS JOIN LATERAL (SELECT v_d_act[i] = 1 AND NOT v_to_served[i] AND NOT p_from_server[i]
                               AS attempt OFFSET 0) e
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.session_id IS DISTINCT FROM p_session[i]) AS n,
               bool_or(s.connected_to <> p_process) AS elsewhere
        FROM active_sessions s
        WHERE s.login = p_from[i] AND s.connected_to = ANY (v_live)) f ON v_pts[2 * i] > 0
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.session_id IS DISTINCT FROM p_session[i]) AS n,
               bool_or(s.connected_to <> p_process) AS elsewhere
        FROM active_sessions s
        WHERE s.login = p_to[i] AND s.connected_to = ANY (v_live)) t ON v_pts[2 * i - 1] > 0;
END $$;
COMMENT ON FUNCTION apply_tombstones(text, text, text[], text[], text[], integer[], bigint[], bigint[], bytea[], bytea[], boolean[], bigint[], bigint[], bigint[], boolean[], text[], bigint[], text[], boolean, boolean[]) IS 'Apply tombstones, one row per tombstone.';
