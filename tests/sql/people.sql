-- Users, servers, sessions, processes.
\ir support.psql
SELECT plan(34);
SELECT make_users();

SELECT is(add_user('home', 'alice', 'key', NULL, NULL, 'local', '{x}', '{wss://x/}'), 1, 'the same key again');
SELECT is(add_user('home', 'alice', 'other', NULL, NULL, 'local', '{x}', '{wss://x/}'), 2, 'another key');
SELECT results_eq($$SELECT client_key COLLATE "default", server1 COLLATE "default" FROM get_user('alice')$$, $$VALUES ('key', 'home')$$, 'change nothing');
SELECT results_eq($$SELECT server1 COLLATE "default", url1 COLLATE "default", server2 COLLATE "default", url2 COLLATE "default" FROM get_user('two')$$, $$VALUES ('home', 'wss://home/ws', 'other', 'wss://other/ws')$$, 'two servers in order');
SELECT is_empty($$SELECT 1 FROM get_user('nobody')$$, 'no such user');
SELECT results_eq($$SELECT client_key COLLATE "default" FROM user_keys WHERE login = 'alice'$$, $$VALUES ('key')$$, 'every key is recorded');
SELECT results_eq($$SELECT owner_login COLLATE "default" FROM user_event_heads ORDER BY 1$$, $$VALUES ('alice'), ('bob'), ('tom'), ('two')$$, 'heads of those served here');

-- Changing servers
SELECT ok(NOT set_user_servers('home', 'nobody', '{x}', '{wss://x/}'), 'nobody''s servers');
SELECT send(msg('alice','far', 1), msg('alice','far', 2), msg('alice','lost', 3));
SELECT finish('alice|far|1000|2|2', 1, 1, 'x');
SELECT set_user_servers('home', 'far', '{z,x}', '{wss://z/ws,wss://x/ws}');
SELECT results_eq($$SELECT route_hint COLLATE "default" FROM dm_delivery_state ORDER BY outgoing_key$$, $$VALUES ('z'), ('x'), ('')$$, 'hints of waiting rows follow, finished ones do not');
SELECT is((SELECT count(*) FROM sync_leases WHERE owner_login IN ('two', 'tom') AND mark_from = '')::int, 2, 'a second server is an order to fill the outbox');
UPDATE sync_leases SET mark_from = NULL;
SELECT set_user_servers('home', 'two', '{other,home}', '{wss://new/ws,wss://home/ws}');
SELECT is((SELECT count(*) FROM sync_leases WHERE mark_from = '')::int, 0, 'not when only order or address changed');
SELECT set_user_servers('home', 'two', '{home,third}', '{wss://home/ws,wss://third/ws}');
SELECT results_eq($$SELECT server_login COLLATE "default" FROM sync_leases WHERE mark_from = ''$$, $$VALUES ('third')$$, 'when the second server is another one');
SELECT set_user_servers('home', 'two', '{x,third}', '{wss://x/ws,wss://third/ws}');
SELECT is((SELECT count(*) FROM sync_leases WHERE mark_from = '')::int, 1, 'not for users who left');
SELECT set_user_servers('home', 'far', '{x}', '{wss://x/ws}');
SELECT results_eq($$SELECT server1 COLLATE "default", server2 COLLATE "default" FROM get_user('far')$$, $$VALUES ('x', NULL)$$, 'two servers become one');

-- Partners
SELECT add_server('p', 'wss://p/', NULL); SELECT add_server('p', 'wss://q/', 'k1'); SELECT add_server('p', 'wss://q/', 'k1'); SELECT add_server('p', 'wss://q/', 'k2');
SELECT is((SELECT array_agg(l::text) FROM list_servers() l), ARRAY['(p,wss://q/,f)'], 'the newest address');
SELECT is((SELECT public_keys FROM sync_servers), '{k1,k2}', 'keys add up');

-- Sessions
SELECT register_process('p1', 'frontd', 'h', 1);
SELECT send(msg('alice','bob'));
SELECT results_eq($$SELECT * FROM create_session('home', 'p1', 's1', 'alice', 'K', 'pwd', '{}', 'pts', 2)$$, $$VALUES (0, 1::bigint, 5::bigint, 1::bigint)$$, 'created, with the positions');
SELECT results_eq($$SELECT verdict FROM create_session('home', 'p1', 's2', 'nobody', 'K', 'pwd', '{}', 'pts', 2)$$, $$VALUES (1)$$, 'nobody''s session');
SELECT create_session('home', 'p1', 's2', 'alice', 'K', 'pwd', '{}', 'pts', 2);
SELECT results_eq($$SELECT verdict FROM create_session('home', 'p1', 's3', 'alice', 'K', 'pwd', '{}', 'pts', 2)$$, $$VALUES (2)$$, 'too many');
SELECT results_eq($$SELECT login COLLATE "default", session_key, storage_pwd, epoch, last_pts, acked_pts, generation FROM get_session('s1')$$, $$VALUES ('alice', 'K'::bytea, 'pwd', 1::bigint, 5::bigint, 0::bigint, 1::bigint)$$, 'read');
SELECT is_empty($$SELECT 1 FROM get_session('s9')$$, 'no such session');
SELECT is_empty($$SELECT 1 FROM login_session('p1', 's9', NULL, 'pts')$$, 'no log-in either');
SELECT register_process('p2', 'frontd', 'h', 2);
SELECT results_eq($$SELECT login COLLATE "default", generation, last_pts FROM login_session('p2', 's1', NULL, 'live')$$, $$VALUES ('alice', 2::bigint, 5::bigint)$$, 'log-in: next generation');
SELECT results_eq($$SELECT connected_to COLLATE "default", event_mode, client_info FROM active_sessions WHERE session_id = 's1'$$, $$VALUES ('p2', 'live', '{}')$$, 'connected there, info kept');
SELECT disconnect_session('s1', 1);
SELECT is((SELECT connected_to::text COLLATE "default" FROM active_sessions WHERE session_id = 's1'), 'p2', 'the end of the older connection is ignored');
SELECT disconnect_session('s1', 2);
SELECT is((SELECT connected_to::text COLLATE "default" FROM active_sessions WHERE session_id = 's1'), NULL, 'of the newest one not');
SELECT set_user_servers('home', 'lost', '{home}', '{wss://home/}'); DELETE FROM user_event_heads WHERE owner_login = 'lost';
SELECT results_eq($$SELECT verdict, epoch, last_pts FROM create_session('home', 'p1', 's4', 'lost', 'K', '', NULL, 'pts', 2)$$, $$VALUES (0, 1::bigint, 0::bigint)$$, 'the head is created if missing');

-- Processes
SELECT login_session('p1', 's1', NULL, 'pts'), login_session('p2', 's2', NULL, 'pts');
SELECT move_clock(60001);
SELECT touch_process('p1', 'frontd', 'h', 1);
SELECT is((SELECT count(*) FROM processes)::int, 2, 'a heartbeat removes nobody');
SELECT register_process('p3', 'frontd', 'h', 3);
SELECT results_eq('SELECT process_id COLLATE "default" FROM processes ORDER BY 1', $$VALUES ('p1'), ('p3')$$, 'a new process removes those silent for 60 s');
SELECT results_eq('SELECT session_id COLLATE "default", connected_to COLLATE "default" FROM active_sessions ORDER BY 1', $$VALUES ('s1', 'p1'), ('s2', NULL), ('s4', 'p1')$$, 'and their connections');
DELETE FROM processes WHERE process_id = 'p1'; SELECT touch_process('p1', 'frontd', 'h', 1);
SELECT is((SELECT count(*) FROM processes WHERE process_id = 'p1')::int, 1, 'a heartbeat registers again');
SELECT send(msg('alice','far', 10), msg('alice','far', 11));
UPDATE dm_delivery_state SET lease_owner = 'p3' WHERE outgoing_key = 'alice|far|1000|11|2';
SELECT unregister_process('p1');
SELECT results_eq($$SELECT lease_owner COLLATE "default", next_attempt_at_ms - now_ms(), attempt_no::int, row_version FROM dm_delivery_state WHERE outgoing_key ~ '\|1[01]\|' ORDER BY outgoing_key$$,
    $$VALUES (NULL, 0::bigint, 1, 2::bigint), ('p3', 30000, 1, 1)$$, 'a clean stop gives its own leases back');
SELECT is((SELECT count(*) FROM active_sessions WHERE connected_to = 'p1')::int + (SELECT count(*) FROM processes WHERE process_id = 'p1')::int, 0, 'and leaves nothing');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
