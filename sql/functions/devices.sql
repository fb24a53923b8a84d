-- A user's own devices: the list, closing one, and which connections are still valid.
--
-- Who asks is a session in one generation. It is looked at in the same transaction, because the
-- connection it asks from may not yet know that the session was closed or taken over: a device that
-- was thrown out must not throw out the others in its last moments.

-- One page in order of session id (which means nothing to people, but stays put while devices come
-- and go), after p_after. At most p_max_bytes, counted as p_item_bytes for each session and the
-- bytes of its client_info, but at least one; `more` on the last row: others come after it. `valid`
-- false, alone in its row: the asking session is no more. `valid` with session_id NULL: nothing
-- comes after p_after.
CREATE OR REPLACE FUNCTION list_sessions(p_login text, p_asking text, p_generation bigint,
    p_after text, p_item_bytes bigint, p_max_bytes bigint)
RETURNS TABLE (valid boolean, session_id text, client_info text, event_mode text,
    created_at_ms bigint, seen_at_ms bigint, acked_pts bigint, connected boolean, more boolean)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_live text[] := live_processes(now_ms());
BEGIN
    RETURN QUERY
    SELECT asking.valid, s.session_id, s.client_info, s.event_mode, s.created_at_ms, s.seen_at_ms,
           s.acked_pts, coalesce(s.connected_to = ANY (v_live), false), s.total > s.n
    FROM (SELECT EXISTS (SELECT FROM active_sessions WHERE session_id = p_asking
                         AND login = p_login AND generation = p_generation) AS valid) asking
    LEFT JOIN LATERAL (
        SELECT p.*, row_number() OVER by_id AS n, count(*) OVER () AS total,
               sum(p_item_bytes + coalesce(octet_length(p.client_info), 0)) OVER by_id AS bytes
        FROM (SELECT a.session_id::text AS session_id, a.client_info, a.event_mode,
                     a.created_at_ms, a.seen_at_ms, a.acked_pts, a.connected_to
              FROM active_sessions a
              WHERE a.login = p_login AND a.session_id > p_after
              ORDER BY a.session_id LIMIT p_max_bytes / p_item_bytes + 2) p
        WINDOW by_id AS (ORDER BY p.session_id COLLATE "C")
    ) s ON asking.valid AND (s.n = 1 OR s.bytes <= p_max_bytes)
    ORDER BY s.session_id COLLATE "C";
END $$;
COMMENT ON FUNCTION list_sessions(text, text, bigint, text, bigint, bigint) IS 'A page of a user''s sessions, for one of them.';

-- 0 closed, 1 no such session, 2 another user's, 3 the asking session is no more. Both rows are
-- locked in order of their key: of two devices that close each other one is first, and the other is
-- told that it is no more.
CREATE OR REPLACE FUNCTION close_session(p_login text, p_asking text, p_generation bigint,
                                         p_session text) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM active_sessions WHERE session_id IN (p_asking, p_session) AND login = p_login
    ORDER BY session_id FOR UPDATE;
    IF NOT EXISTS (SELECT FROM active_sessions WHERE session_id = p_asking AND login = p_login
                   AND generation = p_generation) THEN
        RETURN 3;
    END IF;
    DELETE FROM active_sessions WHERE session_id = p_session AND login = p_login;
    IF FOUND THEN
        RETURN 0;
    END IF;
    RETURN CASE WHEN EXISTS (SELECT FROM active_sessions WHERE session_id = p_session)
                THEN 2 ELSE 1 END;
END $$;
COMMENT ON FUNCTION close_session(text, text, bigint, text) IS 'Remove a session on behalf of another, or the same, of its user.';

-- Of the connections held by a process, those whose session is gone (stored 0) or is at another
-- generation than theirs. A lower one than asked: the database is a standby that had not got the
-- last log-in when it was promoted.
CREATE OR REPLACE FUNCTION outdated_sessions(p_session text[], p_generation bigint[])
RETURNS TABLE (session_id text, asked bigint, stored bigint)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
BEGIN
    RETURN QUERY
    SELECT p_session[i], p_generation[i], coalesce(a.generation, 0)
    FROM generate_series(1, cardinality(p_session)) i
    LEFT JOIN active_sessions a ON a.session_id = p_session[i]
    WHERE a.generation IS DISTINCT FROM p_generation[i];
END $$;
COMMENT ON FUNCTION outdated_sessions(text[], bigint[]) IS 'Connections whose session was closed or taken over.';
