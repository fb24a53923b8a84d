-- Client sessions.

-- verdict: 0 created, 1 no such user, 2 too many sessions. The head is created if missing, and
-- locked: sessions of one login are counted one after the other.
CREATE OR REPLACE FUNCTION create_session(p_me text, p_process text, p_session text, p_login text,
    p_key bytea, p_storage_pwd text, p_client_info text, p_mode text, p_max integer)
RETURNS TABLE (verdict integer, epoch bigint, last_pts bigint, generation bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO user_event_heads (owner_login, has_marks)
    SELECT login, EXISTS (SELECT FROM read_marks r WHERE r.owner_login = p_login)
    FROM users WHERE login = p_login ON CONFLICT DO NOTHING;
    PERFORM lock_heads(p_me, ARRAY[p_login]);
    IF NOT EXISTS (SELECT FROM users WHERE login = p_login) THEN
        RETURN QUERY SELECT 1, 0::bigint, 0::bigint, 0::bigint;
    ELSIF (SELECT count(*) FROM active_sessions WHERE login = p_login) >= p_max THEN
        RETURN QUERY SELECT 2, 0::bigint, 0::bigint, 0::bigint;
    ELSE
        INSERT INTO active_sessions (session_id, login, session_key, storage_pwd, client_info,
            event_mode, connected_to, created_at_ms, seen_at_ms)
        VALUES (p_session, p_login, p_key, p_storage_pwd, p_client_info, p_mode, p_process,
                now_ms(), now_ms());
        RETURN QUERY SELECT 0, h.epoch, h.last_pts, 1::bigint
                     FROM user_event_heads h WHERE h.owner_login = p_login;
    END IF;
END $$;
COMMENT ON FUNCTION create_session(text, text, text, text, bytea, text, text, text, integer) IS 'Create a session, connected to this process.';

CREATE OR REPLACE FUNCTION get_session(p_session text)
RETURNS TABLE (login text, session_key bytea, storage_pwd text, epoch bigint, last_pts bigint,
               acked_pts bigint, generation bigint)
LANGUAGE sql STABLE AS $$
    SELECT s.login::text, s.session_key, s.storage_pwd, coalesce(h.epoch, 1),
           coalesce(h.last_pts, 0), s.acked_pts, s.generation
    FROM active_sessions s LEFT JOIN user_event_heads h ON h.owner_login = s.login
    WHERE s.session_id = p_session
$$;
COMMENT ON FUNCTION get_session(text) IS 'Read a session and its owner''s positions.';

-- The session is marked connected first and the positions are read afterwards, in a later snapshot:
-- an event either is counted in last_pts or its writer sees the session connected. No writer is
-- waited for, none is missed: one whose commit comes after is found by reading on from last_pts.
CREATE OR REPLACE FUNCTION login_session(p_process text, p_session text, p_client_info text,
                                         p_mode text)
RETURNS TABLE (login text, session_key bytea, storage_pwd text, epoch bigint, last_pts bigint,
               acked_pts bigint, generation bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE active_sessions s SET connected_to = p_process, generation = s.generation + 1,
        client_info = coalesce(p_client_info, s.client_info), event_mode = p_mode,
        seen_at_ms = now_ms()
    WHERE s.session_id = p_session;
    RETURN QUERY SELECT * FROM get_session(p_session);
END $$;
COMMENT ON FUNCTION login_session(text, text, text, text) IS 'Log into a session: connected to this process, next generation, current positions.';

CREATE OR REPLACE FUNCTION disconnect_session(p_session text, p_generation bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT set_config('synchronous_commit', 'off', true);
    UPDATE active_sessions SET connected_to = NULL, seen_at_ms = now_ms()
    WHERE session_id = p_session AND generation = p_generation
$$;
COMMENT ON FUNCTION disconnect_session(text, bigint) IS 'The connection of this generation has ended.';
