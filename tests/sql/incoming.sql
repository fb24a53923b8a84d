-- apply_incoming: one copy from a server.
\ir support.psql
SELECT plan(22);
SELECT make_users();
SELECT register_process('p1', 'frontd', 'h', 1); SELECT register_process('p2', 'frontd', 'h', 2);
SELECT create_session('home', 'p2', 'b1', 'bob', '', '', NULL, 'live', 50);

SELECT results_eq($$SELECT ord, verdict FROM recv(msg('alice','far'), msg('alice','nobody'), msg('nobody','alice'),
        msg('far','bob', time_ms => now_ms() + 86400001), msg('far','bob')) ORDER BY ord$$,
    $$VALUES (1, 1), (2, 2), (3, 2), (4, 3), (5, 0)$$, 'verdicts, each item its own');
SELECT results_eq($$SELECT owner_login, message_key, courier FROM signed_messages$$,
    $$VALUES ('bob' COLLATE "C", 'far|bob|1000|1|1' COLLATE "C", false)$$, 'only the good one is stored, for its recipient');
SELECT is((SELECT count(*) FROM dm_delivery_state)::int, 0, 'no delivery row: the author is not served here');
SELECT results_eq($$SELECT to_pts, to_elsewhere, from_pts, ws_sessions FROM recv(msg('far','bob', 2))$$,
    $$VALUES (2::bigint, true, 0::bigint, 1::bigint)$$, 'told to the recipient''s sessions');
SELECT results_eq($$SELECT verdict, to_pts, ws_sessions FROM recv(msg('far','bob', 2))$$, $$VALUES (0, 0::bigint, 0::bigint)$$, 'a repeat is a success and changes nothing');
SELECT results_eq($$SELECT to_pts FROM recv(msg('far','bob', 2, 9), msg('far','bob', 2, 8), msg('far','bob', 2, 9), msg('far','bob', 3)) ORDER BY ord$$,
    $$VALUES (3::bigint), (0), (0), (4)$$, 'repetitions and revisions inside one batch');
SELECT is((SELECT revision_time_ms FROM signed_messages WHERE nonce = 2), 9::bigint, 'the highest revision stays');

-- Outbox of a recipient with a second server
SELECT recv(msg('far','two', 1), msg('far','two', 2, source => 'other'), msg('far','two', 3, source => 'x'));
SELECT results_eq($$SELECT primary_message_key, synced, push_due_at_ms - now_ms() FROM dm_sync_outbox ORDER BY 1$$,
    $$VALUES ('far|two|1000|1|1' COLLATE "C", false, 0::bigint), ('far|two|1000|2|1', true, NULL), ('far|two|1000|3|1', false, 0)$$,
    'synced only if it came from the second server itself');
SELECT recv(msg('far','two', 1, source => 'other'));
SELECT results_eq($$SELECT synced, push_due_at_ms FROM dm_sync_outbox WHERE primary_message_key = 'far|two|1000|1|1'$$,
    $$VALUES (true, NULL::bigint)$$, 'the second server has shown that it holds the same');
SELECT recv(msg('far','two', 2, 7, source => 'x'));
SELECT results_eq($$SELECT synced FROM dm_sync_outbox WHERE primary_message_key = 'far|two|1000|2|1'$$, $$VALUES (false)$$, 'new bytes are unsynced again');
SELECT recv(msg('far','two', 2, 6, source => 'other'));
SELECT results_eq($$SELECT synced FROM dm_sync_outbox WHERE primary_message_key = 'far|two|1000|2|1'$$, $$VALUES (false)$$, 'an older one from the second server proves nothing');

-- The author is served here, the recipient has come to be
SELECT send(msg('tom','faye', 1), msg('tom','faye', 2), msg('tom','faye', 3));
SELECT finish('tom|faye|1000|3|2', 1, 1, 'x');
SELECT set_user_servers('home', 'faye', '{home}', '{wss://home/ws}');
SELECT results_eq($$SELECT to_pts, from_pts > 0 FROM recv(msg('tom','faye', 1))$$, $$VALUES (1::bigint, true)$$, 'a courier copy becomes the recipient''s, the author is told');
SELECT results_eq($$SELECT state, lease_owner, delivered_via FROM dm_delivery_state WHERE outgoing_key = 'tom|faye|1000|1|2'$$,
    $$VALUES ('delivered' COLLATE "C", NULL COLLATE "C", 'home' COLLATE "C")$$, 'his row is delivered, the lease is gone');
SELECT results_eq($$SELECT to_pts, from_pts > 0 FROM recv(msg('tom','faye', 2, 5))$$, $$VALUES (2::bigint, true)$$, 'also by a newer revision');
SELECT results_eq($$SELECT revision_time_ms, state FROM dm_delivery_state WHERE outgoing_key = 'tom|faye|1000|2|2'$$,
    $$VALUES (5::bigint, 'delivered' COLLATE "C")$$, 'which the row then is about');
SELECT results_eq($$SELECT from_pts FROM recv(msg('tom','faye', 3))$$, $$VALUES (0::bigint)$$, 'a row that was delivered already is no news');
-- tom's pair item contains the incoming copy, whose bytes changed
SELECT results_eq($$SELECT sync_id = 'tom|faye|1000|2|2:0:0:' || left(encode(sha256('in tom faye 2 5'::bytea || 'out tom faye 2 0'::bytea), 'hex'), 16), synced
        FROM dm_sync_outbox WHERE primary_message_key = 'tom|faye|1000|2|2'$$, $$VALUES (true, false)$$, 'the author''s pair is another item now');
SELECT results_eq($$SELECT to_pts FROM recv(msg('tom','faye', 1, i => 'x'))
        WHERE (SELECT sha256('x') < digest FROM signed_messages WHERE message_key = 'tom|faye|1000|1|1')$$,
    $$SELECT 0::bigint WHERE (SELECT sha256('x') < digest FROM signed_messages WHERE message_key = 'tom|faye|1000|1|1')$$, 'smaller hash, no change');
-- An author who left since
SELECT send(msg('tom','lost', 9));
SELECT set_user_servers('home', 'tom', '{x}', '{wss://x/ws}'), set_user_servers('home', 'lost', '{home}', '{wss://home/ws}');
SELECT results_eq($$SELECT verdict, from_pts FROM recv(msg('tom','lost', 9))$$, $$VALUES (0, 0::bigint)$$, 'an author who is no longer served here is not told');
SELECT is((SELECT state FROM dm_delivery_state WHERE outgoing_key = 'tom|lost|1000|9|2'), 'delivered', 'but his row is');
SELECT is((SELECT count(*) FROM recv(VARIADIC (SELECT array_agg(msg('far','bob', 1000 + i)) FROM generate_series(1, 300) i)) WHERE verdict = 0)::int, 300, '300 copies in one call');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
