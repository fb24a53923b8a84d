-- Daemon processes: registration, heartbeat, and clearing up after dead ones.

CREATE OR REPLACE FUNCTION register_process(p_process text, p_kind text, p_host text, p_pid bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM touch_process(p_process, p_kind, p_host, p_pid);
    DELETE FROM processes WHERE process_id IN (
        SELECT process_id FROM processes WHERE heartbeat_at_ms < now_ms() - 60000
        ORDER BY process_id FOR UPDATE SKIP LOCKED);
    UPDATE active_sessions SET connected_to = NULL
    WHERE session_id IN (
        SELECT s.session_id FROM active_sessions s
        WHERE s.connected_to IS NOT NULL
          AND NOT EXISTS (SELECT FROM processes p WHERE p.process_id = s.connected_to)
        ORDER BY s.session_id FOR NO KEY UPDATE SKIP LOCKED);
END $$;
COMMENT ON FUNCTION register_process(text, text, text, bigint) IS 'A process starts: record it, and clear what dead ones (no heartbeat for 60 s) left behind.';

CREATE OR REPLACE FUNCTION touch_process(p_process text, p_kind text, p_host text, p_pid bigint)
RETURNS void LANGUAGE sql AS $$
    SELECT set_config('synchronous_commit', 'off', true); -- may be lost with the server
    INSERT INTO processes AS p (process_id, kind, host, pid, started_at_ms, heartbeat_at_ms)
    VALUES (p_process, p_kind, p_host, p_pid, now_ms(), now_ms())
    ON CONFLICT (process_id) DO UPDATE
        SET heartbeat_at_ms = GREATEST(p.heartbeat_at_ms, excluded.heartbeat_at_ms);
$$;
COMMENT ON FUNCTION touch_process(text, text, text, bigint) IS 'Sign of life; records the process again if its row has vanished.';

CREATE OR REPLACE FUNCTION unregister_process(p_process text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := now_ms();
BEGIN
    -- First attempts; a deliveryd, whose leases may be longer, has given back before.
    PERFORM release_claims(p_process, 60000);
    UPDATE active_sessions SET connected_to = NULL, seen_at_ms = v_now
    WHERE session_id IN (SELECT session_id FROM active_sessions WHERE connected_to = p_process
                         ORDER BY session_id FOR NO KEY UPDATE);
    DELETE FROM processes WHERE process_id = p_process;
END $$;
COMMENT ON FUNCTION unregister_process(text) IS 'A process stops cleanly: its leases are given back, due at once, its sessions are no longer connected.';
