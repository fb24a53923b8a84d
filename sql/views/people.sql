-- Who is here: processes, sessions, users.

CREATE OR REPLACE VIEW v_processes AS
SELECT p.kind, p.host, p.pid, p.process_id,
       CASE WHEN p.heartbeat_at_ms > now_ms() - 30000 THEN 'alive' ELSE 'dead' END AS state,
       ms_in_words(now_ms() - p.started_at_ms) AS up_for,
       ms_in_words(now_ms() - p.heartbeat_at_ms) AS heartbeat_ago,
       (SELECT count(*) FROM active_sessions s WHERE s.connected_to = p.process_id) AS sessions
FROM processes p;
COMMENT ON VIEW v_processes IS 'Running daemon processes.';
COMMENT ON COLUMN v_processes.kind IS 'frontd, deliveryd, syncd.';
COMMENT ON COLUMN v_processes.host IS 'Host name.';
COMMENT ON COLUMN v_processes.pid IS 'Process number there.';
COMMENT ON COLUMN v_processes.process_id IS 'Name under which it holds leases and connections.';
COMMENT ON COLUMN v_processes.state IS 'alive, or dead: no heartbeat for 30 s.';
COMMENT ON COLUMN v_processes.up_for IS 'Time since it registered.';
COMMENT ON COLUMN v_processes.heartbeat_ago IS 'Time since its last heartbeat.';
COMMENT ON COLUMN v_processes.sessions IS 'Sessions connected to it.';

CREATE OR REPLACE VIEW v_sessions AS
SELECT s.login, left(s.session_id, 8) AS session, s.event_mode,
       CASE WHEN s.connected_to IS NULL THEN 'offline'
            WHEN p.heartbeat_at_ms > now_ms() - 30000 THEN 'connected' ELSE 'lost' END AS state,
       coalesce(s.connected_to, '') AS connected_to,
       s.acked_pts, h.last_pts - s.acked_pts AS behind,
       s.push_endpoint IS NOT NULL AS push,
       ms_in_words(now_ms() - s.seen_at_ms) AS seen_ago,
       ms_in_words(now_ms() - s.created_at_ms) AS age,
       coalesce(s.client_info, '') AS client_info
FROM active_sessions s
LEFT JOIN processes p ON p.process_id = s.connected_to
LEFT JOIN user_event_heads h ON h.owner_login = s.login;
COMMENT ON VIEW v_sessions IS 'Sessions (devices) and how far they have read.';
COMMENT ON COLUMN v_sessions.login IS 'Whose.';
COMMENT ON COLUMN v_sessions.session IS 'First characters of the session id; the whole id is nobody''s business here.';
COMMENT ON COLUMN v_sessions.event_mode IS 'live or pts.';
COMMENT ON COLUMN v_sessions.state IS 'connected, offline, or lost: the process that held the connection is gone.';
COMMENT ON COLUMN v_sessions.connected_to IS 'Process that holds the connection.';
COMMENT ON COLUMN v_sessions.acked_pts IS 'Acknowledged up to here.';
COMMENT ON COLUMN v_sessions.behind IS 'Events it has not acknowledged.';
COMMENT ON COLUMN v_sessions.push IS 'Has a Web Push subscription.';
COMMENT ON COLUMN v_sessions.seen_ago IS 'Time since the last log-in or disconnect.';
COMMENT ON COLUMN v_sessions.age IS 'Time since it was created.';
COMMENT ON COLUMN v_sessions.client_info IS 'What the client says about itself.';

CREATE OR REPLACE VIEW v_users AS
SELECT u.login, u.source,
       (SELECT string_agg(a.server_login || ' ' || a.url, ', ' ORDER BY a.slot)
        FROM user_access_servers_current a WHERE a.login = u.login) AS servers,
       u.enc_key IS NOT NULL AS enc_key,
       (SELECT count(*) FROM user_keys k WHERE k.login = u.login) AS keys,
       (SELECT count(*) FROM active_sessions s WHERE s.login = u.login) AS sessions,
       h.last_pts, ms_in_words(now_ms() - u.refreshed_at_ms) AS refreshed_ago, u.client_key,
       u.imported_from, u.other_key, u.other_key_from,
       ms_in_words(now_ms() - u.other_key_at_ms) AS other_key_ago,
       ms_in_words(now_ms() - p.time_ms) AS profile_ago
FROM users u
LEFT JOIN user_profiles p ON p.login = u.login
LEFT JOIN user_event_heads h ON h.owner_login = u.login;
COMMENT ON VIEW v_users IS 'Everybody this server knows.';
COMMENT ON COLUMN v_users.login IS 'Login.';
COMMENT ON COLUMN v_users.source IS 'local, partner, provisional, profile (was local and has moved away).';
COMMENT ON COLUMN v_users.servers IS 'Access servers and their addresses, in order.';
COMMENT ON COLUMN v_users.enc_key IS 'Has published an encryption key.';
COMMENT ON COLUMN v_users.keys IS 'Client keys ever accepted.';
COMMENT ON COLUMN v_users.sessions IS 'Sessions kept here.';
COMMENT ON COLUMN v_users.last_pts IS 'End of the event log; empty = never served here.';
COMMENT ON COLUMN v_users.refreshed_ago IS 'Time since the record was confirmed.';
COMMENT ON COLUMN v_users.client_key IS 'Current client key, Base64.';
COMMENT ON COLUMN v_users.imported_from IS 'Server whose answer the record is; empty = added here.';
COMMENT ON COLUMN v_users.other_key IS 'A different client key that another server names; not used until settle_user_key() decides.';
COMMENT ON COLUMN v_users.other_key_from IS 'Server that named it last.';
COMMENT ON COLUMN v_users.other_key_ago IS 'Time since then.';
COMMENT ON COLUMN v_users.profile_ago IS 'Time since the user signed the profile that holds here; empty = none was seen. Nothing unsigned changes the servers of somebody who has one.';
