-- Other servers, as the connection pools of the daemons see them.

-- What a process keeps in memory of sync_servers.
CREATE OR REPLACE FUNCTION partner_servers()
RETURNS TABLE (server_login text, url text, blocked boolean, public_keys text) LANGUAGE sql STABLE AS $$
    SELECT server_login::text, url::text, blocked, array_to_string(public_keys, ' ')
    FROM sync_servers ORDER BY server_login
$$;
COMMENT ON FUNCTION partner_servers() IS 'Table sync_servers, with the keys of a server joined by spaces.';

-- Places (from 1) of the given servers that no user names under that address.
CREATE OR REPLACE FUNCTION unnamed_peers(p_logins text[], p_urls text[])
RETURNS SETOF bigint LANGUAGE sql STABLE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
    SELECT i FROM unnest(p_logins, p_urls) WITH ORDINALITY AS x (login, url, i)
    WHERE NOT EXISTS (SELECT FROM user_access_servers_current a
                      WHERE a.server_login = x.login AND a.url = x.url)
    ORDER BY i
$$;
COMMENT ON FUNCTION unnamed_peers(text[], text[]) IS 'Which of these servers no user''s record names.';

-- One step through the index for each pair, so the cost does not grow with the number of users.
CREATE OR REPLACE FUNCTION known_peers(p_me text, p_limit bigint)
RETURNS TABLE (server_login text, url text) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE pairs AS (
        (SELECT a.server_login, a.url FROM user_access_servers_current a
         ORDER BY a.server_login, a.url LIMIT 1)
        UNION ALL
        SELECT n.server_login, n.url FROM pairs p, LATERAL (
            SELECT a.server_login, a.url FROM user_access_servers_current a
            WHERE (a.server_login, a.url) > (p.server_login, p.url)
            ORDER BY a.server_login, a.url LIMIT 1) n)
    (SELECT s.server_login::text, s.url::text FROM sync_servers s
     WHERE NOT s.blocked AND s.server_login <> p_me LIMIT p_limit)
    UNION ALL
    (SELECT p.server_login::text, p.url::text FROM pairs p
     WHERE p.server_login <> p_me
       AND NOT EXISTS (SELECT FROM sync_servers s WHERE s.server_login = p.server_login)
     LIMIT p_limit)
    LIMIT p_limit
$$;
COMMENT ON FUNCTION known_peers(text, bigint) IS 'Servers to be connected to: partners, then those that users name.';

-- What has changed of a process's peers since it last wrote; times are milliseconds ago, negative =
-- never. false = the process is not registered, nothing was written.
CREATE OR REPLACE FUNCTION write_peer_connections(p_process text, p_logins text[], p_urls text[],
    p_states text[], p_errors text[], p_connected bigint[], p_active bigint[], p_ping bigint[],
    p_pong bigint[], p_error_ago bigint[], p_reconnects bigint[], p_realtime bigint[],
    p_normal bigint[], p_bulk bigint[], p_in_flight bigint[], p_ok bigint[], p_failed bigint[],
    p_timed_out bigint[], p_late bigint[], p_gone_logins text[], p_gone_urls text[])
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := now_ms();
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM processes WHERE process_id = p_process FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM peer_connections c USING unnest(p_gone_logins, p_gone_urls) AS g (login, url)
    WHERE c.process_id = p_process AND c.server_login = g.login AND c.url = g.url;
    INSERT INTO peer_connections AS c
    SELECT p_process, x.login, x.url, x.state,
           v_now - nullif(x.connected, -1), v_now - nullif(x.active, -1),
           v_now - nullif(x.ping, -1), v_now - nullif(x.pong, -1),
           x.reconnects, x.realtime, x.normal, x.bulk, x.in_flight, x.ok, x.failed, x.timed_out,
           x.late, x.error, v_now - nullif(x.error_ago, -1), v_now
    FROM unnest(p_logins, p_urls, p_states, p_errors, p_connected, p_active, p_ping, p_pong,
                p_error_ago, p_reconnects, p_realtime, p_normal, p_bulk, p_in_flight, p_ok, p_failed,
                p_timed_out, p_late)
         AS x (login, url, state, error, connected, active, ping, pong, error_ago, reconnects,
               realtime, normal, bulk, in_flight, ok, failed, timed_out, late)
    ON CONFLICT (process_id, server_login, url) DO UPDATE SET
        state = excluded.state, connected_at_ms = excluded.connected_at_ms,
        active_at_ms = excluded.active_at_ms, ping_at_ms = excluded.ping_at_ms,
        pong_at_ms = excluded.pong_at_ms, reconnects = excluded.reconnects,
        queued_realtime = excluded.queued_realtime, queued_normal = excluded.queued_normal,
        queued_bulk = excluded.queued_bulk, in_flight = excluded.in_flight, ok = excluded.ok,
        failed = excluded.failed, timed_out = excluded.timed_out, late = excluded.late,
        last_error = excluded.last_error, last_error_at_ms = excluded.last_error_at_ms,
        updated_at_ms = excluded.updated_at_ms;
    RETURN true;
END $$;
COMMENT ON FUNCTION write_peer_connections(text, text[], text[], text[], text[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], text[], text[]) IS 'A process tells about its connections to other servers.';

-- In plpgsql: views come after functions.
CREATE OR REPLACE FUNCTION list_peers()
RETURNS TABLE (server_login text, url text, partner boolean, process text, state text, last_error text,
               error_ago text, connected_ago text, queued bigint, in_flight bigint, ok bigint,
               failed bigint, timed_out bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT v.server_login::text, v.url::text, v.partner, v.process,
        CASE WHEN v.blocked THEN 'blocked' ELSE v.state END, v.last_error, v.error_ago,
        v.connected_ago, coalesce(v.queued_realtime + v.queued_normal + v.queued_bulk, 0),
        coalesce(v.in_flight, 0), coalesce(v.ok, 0), coalesce(v.failed, 0), coalesce(v.timed_out, 0)
    FROM v_peers v ORDER BY v.server_login, v.url, v.process, v.process_id;
END $$;
COMMENT ON FUNCTION list_peers() IS 'v_peers for a terminal.';

-- A stranger is blocked by a row of its own, without an address, which goes when the block does.
CREATE OR REPLACE FUNCTION block_server(p_login text, p_blocked boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_blocked THEN
        INSERT INTO sync_servers AS s (server_login, url, blocked, updated_at_ms)
        VALUES (p_login, '', true, now_ms())
        ON CONFLICT (server_login) DO UPDATE SET blocked = true, updated_at_ms = excluded.updated_at_ms
        WHERE NOT s.blocked;
        RETURN FOUND;
    END IF;
    DELETE FROM sync_servers WHERE server_login = p_login AND blocked AND url = '';
    IF NOT FOUND THEN
        UPDATE sync_servers SET blocked = false, updated_at_ms = now_ms()
        WHERE server_login = p_login AND blocked;
    END IF;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION block_server(text, boolean) IS 'Operator: block a server, partner or not, or let it in again; false = it was so already.';
