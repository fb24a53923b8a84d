-- accept_pairs: verdicts, both ways of delivery, repeats, revisions, batches.
\ir support.psql
SELECT plan(47);
SELECT make_users();

-- Verdicts
SELECT results_eq($$SELECT verdict, state, from_pts, to_pts, attempt FROM send(msg('far','alice'))$$,
    $$VALUES (1, 'accepted', 0::bigint, 0::bigint, false)$$, 'an author who is not served here is refused');
SELECT results_eq($$SELECT verdict FROM send(msg('alice','nobody'), msg('nobody','alice'))$$,
    $$VALUES (2), (2)$$, 'unknown users');
SELECT results_eq($$SELECT verdict FROM send(msg('alice','bob', time_ms => now_ms() + 900001),
        msg('alice','bob', rev => now_ms() + 900001), msg('alice','bob', 77, time_ms => now_ms() + 900000))$$,
    $$VALUES (3), (3), (0)$$, 'a client is held to max_future, in the revision too');
SELECT results_eq($$SELECT verdict FROM send(
        msg('alice','bob', 78, time_ms => now_ms() + 86400001, by_server => true),
        msg('alice','bob', 79, time_ms => now_ms() + 86400000, by_server => true))$$,
    $$VALUES (3), (0)$$, 'a server is held to 24 hours');
SELECT is((SELECT count(*) FROM signed_messages WHERE from_login <> 'alice')::int, 0, 'what was refused is not stored');

-- Recipient served here
SELECT results_eq($$SELECT verdict, state, from_pts > 0, to_pts > 0, attempt, route1 FROM send(msg('alice','bob'))$$,
    $$VALUES (0, 'delivered', true, true, false, NULL)$$, 'recipient served here: born delivered, both told');
SELECT results_eq($$SELECT owner_login, message_type::int, courier, encode(blob, 'escape') FROM signed_messages
        WHERE base_key = 'alice|bob|1000|1' ORDER BY 2$$,
    $$VALUES ('bob' COLLATE "C", 1, false, 'in alice bob 1 0'), ('alice', 2, false, 'out alice bob 1 0')$$, 'both copies, each with its owner');
SELECT results_eq($$SELECT state, next_attempt_at_ms, lease_owner, delivered_via, attempt_no::int FROM dm_delivery_state
        WHERE outgoing_key = 'alice|bob|1000|1|2'$$,
    $$VALUES ('delivered' COLLATE "C", NULL::bigint, NULL COLLATE "C", 'home' COLLATE "C", 1)$$, 'the row is final from birth');

-- Recipient elsewhere
SELECT results_eq($$SELECT verdict, state, from_pts > 0, to_pts, attempt, row_version, lease_ms, route1, url1, route2, url2
        FROM send(msg('alice','far'))$$,
    $$VALUES (0, 'accepted', true, 0::bigint, true, 1::bigint, 30000::bigint, 'x', 'wss://x/ws', 'y', 'wss://y/ws')$$,
    'recipient elsewhere: leased to the caller, with the routes');
SELECT results_eq($$SELECT courier FROM signed_messages WHERE owner_login = 'far'$$, $$VALUES (true)$$, 'a courier copy');
SELECT is((SELECT count(*) FROM user_events WHERE owner_login = 'far')::int, 0, 'which nobody is told about');
SELECT is((SELECT count(*) FROM user_event_heads WHERE owner_login = 'far')::int, 0, 'and which makes no head');
SELECT results_eq($$SELECT lease_owner, lease_until_ms - now_ms(), next_attempt_at_ms - accepted_at_ms, accepted_at_ms - now_ms(), route_hint
        FROM dm_delivery_state WHERE outgoing_key = 'alice|far|1000|1|2'$$,
    $$VALUES ('p1' COLLATE "C", 30000::bigint, 30000::bigint, 0::bigint, 'x' COLLATE "C")$$, 'lease and schedule of the first attempt');
SELECT results_eq($$SELECT state, attempt, route1 FROM send(msg('alice','lost'))$$,
    $$VALUES ('accepted', true, NULL)$$, 'no routes at all: an attempt without routes');
SELECT results_eq($$SELECT state, attempt FROM send(msg('alice','far', 5, by_server => true))$$,
    $$VALUES ('accepted', false)$$, 'brought by a server: no attempt by the caller');
SELECT results_eq($$SELECT lease_owner, next_attempt_at_ms - now_ms() FROM dm_delivery_state WHERE outgoing_key = 'alice|far|1000|5|2'$$,
    $$VALUES (NULL COLLATE "C", 0::bigint)$$, 'but due at once, unleased');

-- Repeats
SELECT move_clock(1000);
CREATE TEMP TABLE before AS SELECT * FROM dm_delivery_state;
SELECT results_eq($$SELECT verdict, state, from_pts, to_pts, attempt FROM send(msg('alice','bob'), msg('alice','far'))$$,
    $$VALUES (0, 'delivered', 0::bigint, 0::bigint, false), (0, 'accepted', 0, 0, false)$$, 'a repeat answers the state and makes no new attempt');
SELECT results_eq('SELECT * FROM dm_delivery_state ORDER BY 1, 2', 'SELECT * FROM before ORDER BY 1, 2', 'and changes no row');
UPDATE dm_delivery_state SET state = 'failed', next_attempt_at_ms = NULL, lease_owner = NULL, lease_until_ms = NULL
WHERE outgoing_key = 'alice|lost|1000|1|2';
SELECT results_eq($$SELECT state, attempt FROM send(msg('alice','lost'))$$, $$VALUES ('failed', false)$$, 'failed stays failed');
DELETE FROM dm_delivery_state WHERE outgoing_key = 'alice|lost|1000|1|2';
SELECT results_eq($$SELECT state, attempt FROM send(msg('alice','lost'))$$, $$VALUES ('accepted', false)$$, 'no row (old history): accepted, and none is made');
SELECT is((SELECT count(*) FROM dm_delivery_state WHERE to_login = 'lost')::int, 0, 'really none');

-- Edits
SELECT results_eq($$SELECT state, from_pts > 0, to_pts > 0, row_version FROM send(msg('alice','bob', rev => 5))$$,
    $$VALUES ('delivered', true, true, 2::bigint)$$, 'an edit is told to both');
SELECT results_eq($$SELECT DISTINCT revision_time_ms FROM signed_messages WHERE base_key = 'alice|bob|1000|1'$$, $$VALUES (5::bigint)$$, 'and replaces both copies');
SELECT results_eq($$SELECT created_at_ms - stored_at_ms FROM signed_messages WHERE message_key = 'alice|bob|1000|1|1'$$, $$VALUES (-1000::bigint)$$, 'first stored and stored now are kept apart');
SELECT results_eq($$SELECT from_pts, to_pts FROM send(msg('alice','bob', rev => 4))$$, $$VALUES (0::bigint, 0::bigint)$$, 'a lower revision changes nothing');
SELECT results_eq($$SELECT state, attempt, row_version FROM send(msg('alice','far', rev => 5))$$,
    $$VALUES ('accepted', true, 2::bigint)$$, 'an edit of a message on its way is a new task');
SELECT results_eq($$SELECT revision_time_ms, accepted_at_ms - now_ms(), attempt_no::int FROM dm_delivery_state WHERE outgoing_key = 'alice|far|1000|1|2'$$,
    $$VALUES (5::bigint, 0::bigint, 1)$$, 'accepted now, attempts from 1');

-- Same revision, other bytes: the larger SHA-256 stays, in either order.
CREATE TEMP TABLE w AS SELECT b, sha256(b::bytea) AS h FROM unnest('{aa,bb,cc,dd}'::text[]) b;
SELECT send(msg('alice','bob', 20, i => b, o => b)) FROM w ORDER BY h;
SELECT send(msg('alice','bob', 21, i => b, o => b)) FROM w ORDER BY h DESC;
SELECT results_eq($$SELECT DISTINCT blob FROM signed_messages WHERE nonce IN (20, 21)$$, $$SELECT b::bytea FROM w ORDER BY h DESC LIMIT 1$$, 'the larger hash wins whatever the order');
SELECT is((SELECT count(*) FROM user_events WHERE message_key = 'alice|bob|1000|20|1')::int, 4, 'each replacement is an event');
SELECT is((SELECT count(*) FROM user_events WHERE message_key = 'alice|bob|1000|21|1')::int, 1, 'no replacement, no event');

-- Notes to self
SELECT is((SELECT from_pts - to_pts FROM send(msg('bob','bob'))), 1::bigint, 'a note to self is two events, incoming copy first');

-- One batch like one after the other
SELECT results_eq($$SELECT ord, from_pts - min(from_pts) FILTER (WHERE from_pts > 0) OVER (), row_version, state FROM send(
        msg('two','alice', 1), msg('two','alice', 1), msg('two','alice', 1, 7), msg('two','alice', 2), msg('two','alice', 1, 3), msg('two','alice', 1, 9))
        ORDER BY ord$$,
    $$VALUES (1, 0::bigint, 1::bigint, 'delivered'), (2, -1, 1, 'delivered'), (3, 1, 2, 'delivered'), (4, 2, 1, 'delivered'), (5, -1, 2, 'delivered'), (6, 3, 3, 'delivered')$$,
    'repetitions and revisions inside one batch');
SELECT results_eq($$SELECT attempt FROM send(msg('two','far', 1), msg('two','far', 1)) ORDER BY ord$$, $$VALUES (true), (false)$$, 'one attempt for the same pair twice');
SELECT results_eq($$SELECT verdict FROM send(msg('alice','bob', 30), msg('far','bob', 30), msg('alice','nobody', 30), msg('alice','bob', 31)) ORDER BY ord$$,
    $$VALUES (0), (1), (2), (0)$$, 'a bad item does not fail its neighbours');
SELECT is((SELECT array_agg(verdict ORDER BY ord) FROM send(VARIADIC (SELECT array_agg(msg('alice','bob', 1000 + i)) FROM generate_series(1, 300) i))), array_fill(0, '{300}'), '300 pairs in one call');

-- Sessions
SELECT register_process('p1', 'frontd', 'h', 1); SELECT register_process('p2', 'frontd', 'h', 2); SELECT register_process('p3', 'frontd', 'h', 3);
UPDATE processes SET heartbeat_at_ms = now_ms() - 30000 WHERE process_id = 'p3';
SELECT create_session('home', p, s, l, '', '', NULL, 'live', 50)
FROM (VALUES ('p1','a1','alice'), ('p2','a2','alice'), ('p3','a3','alice'), ('p1','b1','bob'), ('p1','b2','bob')) v(p, s, l);
SELECT disconnect_session('b2', 1);
SELECT results_eq($$SELECT ws_sessions, from_elsewhere, to_elsewhere FROM send(msg('alice','bob', 40))$$, $$VALUES (3::bigint, true, false)$$, 'connected sessions of both, those of a dead process not');
SELECT results_eq($$SELECT ws_sessions FROM send(msg('alice','bob', 41, session => 'a1'))$$, $$VALUES (2::bigint)$$, 'the requesting one is not counted');
SELECT results_eq($$SELECT ws_sessions FROM send(msg('alice','alice', 42, session => 'a1'))$$, $$VALUES (1::bigint)$$, 'notes to self count each session once');
SELECT results_eq($$SELECT ws_sessions FROM send(msg('alice','far', 43))$$, $$VALUES (2::bigint)$$, 'only the author''s where the recipient is elsewhere');
SELECT results_eq($$SELECT ws_sessions FROM send(msg('alice','bob', 41))$$, $$VALUES (0::bigint)$$, 'nothing is queued by a repeat');

-- This server comes to serve the recipient
SELECT send(msg('alice','faye', 50), msg('alice','faye', 51), msg('alice','faye', 52, i => 'zz'));
UPDATE dm_delivery_state SET state = 'failed', next_attempt_at_ms = NULL, lease_owner = NULL, lease_until_ms = NULL
WHERE outgoing_key = 'alice|faye|1000|51|2';
SELECT set_user_servers('home', 'faye', '{home}', '{wss://home/ws}');
SELECT results_eq($$SELECT state, from_pts, to_pts, attempt FROM send(msg('alice','faye', 50))$$, $$VALUES ('delivered', 0::bigint, 1::bigint, false)$$, 'the courier copy becomes the recipient''s');
SELECT results_eq($$SELECT courier FROM signed_messages WHERE message_key = 'alice|faye|1000|50|1'$$, $$VALUES (false)$$, 'no longer a courier copy');
SELECT results_eq($$SELECT kind::int, message_key FROM user_events WHERE owner_login = 'alice' ORDER BY pts DESC LIMIT 1$$,
    $$VALUES (2, 'alice|faye|1000|50|2' COLLATE "C")$$, 'and the author is told the new state');
SELECT results_eq($$SELECT state, to_pts FROM send(msg('alice','faye', 51))$$, $$VALUES ('failed', 2::bigint)$$, 'a failed row stays failed');
SELECT results_eq($$SELECT blob FROM signed_messages WHERE message_key = 'alice|faye|1000|50|1'$$, $$VALUES ('in alice faye 50 0'::bytea)$$, 'its bytes stayed');
SELECT results_eq($$SELECT state FROM send(msg('alice','faye', 52, 6))$$, $$VALUES ('delivered')$$, 'an edit over a courier copy');

SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
