-- Settings of users: one record per name, the newest time wins, of equal times the larger value by
-- bytes, so that all servers of a user end up with the same one. Deleting is an empty value.

-- Store settings, signatures verified before. One element of each array per setting. p_source NULL: it
-- comes from the user's client; otherwise from that server, and the rules for clients do not apply.
-- One row per item. verdict: 0 stored, or there is a newer one; 1 not served here; 3 its time is too
-- far ahead; 4 the user has too many. `pts`: the event of its change, 0 = nothing changed.
--
-- Of several values for one name in a batch only the one that wins is stored.
CREATE OR REPLACE FUNCTION put_settings(p_me text, p_process text, p_login text[], p_name text[],
    p_value text[], p_time bigint[], p_sig bytea[], p_source text[], p_max_future bigint[],
    p_max_count integer)
RETURNS TABLE (ord integer, verdict integer, pts bigint, elsewhere boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_n integer := cardinality(p_name);
    v_verdict integer[]; v_second text[];
    v_newer boolean[]; v_same boolean[]; v_adds boolean[];
    v_pts bigint[]; v_live text[];
BEGIN
    PERFORM lock_heads(p_me, p_login);
    v_now := now_ms();
    SELECT array_agg(verdict ORDER BY i), array_agg(second ORDER BY i),
           array_agg(verdict = 0 AND newer AND place = 1 ORDER BY i),
           array_agg(verdict = 0 AND same ORDER BY i),
           array_agg(verdict = 0 AND newer AND place = 1 AND p_source[i] IS NULL AND p_value[i] <> ''
                     AND old_value = '' ORDER BY i)
    INTO v_verdict, v_second, v_newer, v_same, v_adds
    FROM (
        SELECT i, verdict, second, old_value, newer, same,
               row_number() OVER (PARTITION BY p_login[i] COLLATE "C", p_name[i] COLLATE "C"
                   ORDER BY verdict > 0, p_time[i] DESC, p_value[i] COLLATE "C" DESC, i) AS place
        FROM (
            SELECT i, coalesce(u.value, '') AS old_value,
                   CASE p_me WHEN a.server_login THEN b.server_login
                             WHEN b.server_login THEN a.server_login END AS second,
                   CASE WHEN NOT coalesce(p_me IN (a.server_login, b.server_login), false) THEN 1
                        WHEN p_time[i] - v_now > CASE WHEN p_source[i] IS NULL THEN p_max_future[i]
                                                      ELSE 86400000 END THEN 3
                        ELSE 0 END AS verdict,
                   u.login IS NULL
                   OR (p_time[i], p_value[i] COLLATE "C") > (u.time_ms, u.value) AS newer,
                   coalesce((p_time[i], p_value[i] COLLATE "C") = (u.time_ms, u.value), false) AS same
            FROM generate_series(1, v_n) i
            LEFT JOIN user_access_servers_current a ON a.login = p_login[i] AND a.slot = 1
            LEFT JOIN user_access_servers_current b ON b.login = p_login[i] AND b.slot = 2
            LEFT JOIN user_settings u ON u.login = p_login[i] AND u.name = p_name[i]) x) y;
    IF true = ANY (v_adds) THEN
        SELECT array_agg(CASE WHEN full_up THEN 4 ELSE v_verdict[i] END ORDER BY i),
               array_agg(v_newer[i] AND NOT full_up ORDER BY i)
        INTO v_verdict, v_newer
        FROM (
            SELECT i, v_adds[i] AND
                   (SELECT count(*) FROM user_settings u WHERE u.login = p_login[i] AND u.value <> '')
                   + count(*) FILTER (WHERE v_adds[i])
                     OVER (PARTITION BY p_login[i] COLLATE "C" ORDER BY i) > p_max_count AS full_up
            FROM generate_series(1, v_n) i) x;
    END IF;

    INSERT INTO user_settings AS u (login, name, value, time_ms, signature, stored_at_ms, synced)
    SELECT p_login[i], p_name[i], p_value[i], p_time[i], p_sig[i], v_now,
           v_second[i] IS NULL OR p_source[i] IS NOT DISTINCT FROM v_second[i]
    FROM generate_series(1, v_n) i WHERE v_newer[i]
    ORDER BY 1, 2
    ON CONFLICT (login, name) DO UPDATE SET value = excluded.value, time_ms = excluded.time_ms,
        signature = excluded.signature, stored_at_ms = excluded.stored_at_ms,
        synced = excluded.synced;
    -- The second server has shown that it holds the same. In order of names, as acknowledgements come.
    PERFORM FROM generate_series(1, v_n) i
    JOIN user_settings u ON u.login = p_login[i] AND u.name = p_name[i]
    WHERE v_same[i] AND p_source[i] = v_second[i] AND CASE WHEN u.synced THEN false ELSE true END
    ORDER BY u.login, u.name FOR NO KEY UPDATE OF u;
    UPDATE user_settings u SET synced = true FROM generate_series(1, v_n) i
    WHERE v_same[i] AND p_source[i] = v_second[i] AND u.login = p_login[i] AND u.name = p_name[i]
      AND CASE WHEN u.synced THEN false ELSE true END;

    v_pts := append_events(v_now, ARRAY(SELECT CASE WHEN v_newer[i] THEN p_login[i] END
                                        FROM generate_series(1, v_n) i ORDER BY i),
                           array_fill(3::smallint, ARRAY[v_n]), p_name);
    v_live := live_processes(v_now);
    RETURN QUERY
    SELECT i, v_verdict[i], v_pts[i], v_pts[i] > 0 AND EXISTS (
        SELECT FROM active_sessions s WHERE s.login = p_login[i] AND s.connected_to = ANY (v_live)
                                        AND s.connected_to <> p_process)
    FROM generate_series(1, v_n) i;
END $$;
COMMENT ON FUNCTION put_settings(text, text, text[], text[], text[], bigint[], bytea[], text[], bigint[], integer) IS 'Store settings of users, one row per setting.';

-- A page of settings after p_after, by name, deleted ones with their empty value; p_names NULL = all, otherwise only these. At most p_limit and p_max_bytes of values, but
-- at least one; `more` on the last row: others follow it.
CREATE OR REPLACE FUNCTION get_settings(p_login text, p_names text[], p_after text, p_limit integer,
                                        p_max_bytes bigint)
RETURNS TABLE (name text, value text, time_ms bigint, signature bytea, more boolean)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
    -- Lengths first: they are read without the values.
    RETURN QUERY
    SELECT u.name::text, u.value::text, u.time_ms, u.signature, k.n < k.found
    FROM (
        SELECT p.name, row_number() OVER w AS n, sum(p.bytes) OVER w AS total,
               count(*) OVER () AS found
        FROM (SELECT s.name, octet_length(s.value) AS bytes FROM user_settings s
              WHERE s.login = p_login AND s.name > p_after
                AND (p_names IS NULL OR s.name = ANY (p_names))
              ORDER BY s.name LIMIT p_limit + 1) p
        WINDOW w AS (ORDER BY p.name)) k
    CROSS JOIN LATERAL (SELECT * FROM user_settings x
                        WHERE x.login = p_login AND x.name = k.name OFFSET 0) u
    WHERE k.n <= p_limit AND (k.n = 1 OR k.total <= p_max_bytes)
    ORDER BY k.n;
END $$;
COMMENT ON FUNCTION get_settings(text, text[], text, integer, bigint) IS 'A page of a user''s settings, by name.';
