-- The cost of the hot calls does not grow with what is stored: buffers touched are counted with a
-- small and with a large database, in one session, whose plans were made while it was empty.
\ir support.psql
SELECT plan(23);
SELECT make_users();
SET enable_seqscan = on;

-- Buffers that one call touches.
CREATE FUNCTION buffers(q text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE j json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT json) ' || q INTO j;
    RETURN (j->0->'Plan'->>'Shared Hit Blocks')::bigint + (j->0->'Plan'->>'Shared Read Blocks')::bigint;
END $$;
CREATE FUNCTION few(q text, lim bigint, what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE b bigint;
BEGIN
    PERFORM buffers(q);
    b := buffers(q);
    RETURN ok(b < lim, what || ' (' || b || ' buffers)');
END $$;
-- Warm up on the empty database, so that plans are cached.
SELECT send(msg('alice','bob', i), msg('alice','far', i), msg('two','bob', i)) FROM generate_series(1, 8) i;
SELECT finish('alice|far|1000|' || i || '|2', 1, 2) FROM generate_series(1, 7) i;
SELECT read_pair('bob', 'alice', i, 1500, 500 + i), bury(6, 'tom', 'tom', i, n => 900 + i), bury(8, 'tom', 'tom', until => 5, n => 920 + i) FROM generate_series(1, 8) i;
SELECT send(msg('tom','bob', i)) FROM generate_series(1, 8) i;
SELECT count(*) FROM generate_series(1, 8) i, list_conversations('alice', 10, -1, '', 100000);
SELECT count(*) FROM generate_series(1, 8) i, get_history('alice', 'bob', 10, -1, '', 100000), events_since('{alice}', '{0}', 1, 1);

SELECT claim_turns('home', 'p1', '{}', 5, 1000), finish_turn('p1', 'tom', 'other', 0, '', 1000, true), renew_turn('p1', 'tom', 'other', 5), tell_history('home', 'p1', NULL) FROM generate_series(1, 8) i;
SELECT sync_page('home', 'other', true, 'two', 0, '', 10, 100000, ARRAY['x:1']), sync_settings_page('home', 'other', true, 'two', 0, '', 10, 100000, ARRAY['x:1']) FROM generate_series(1, 8) i;

INSERT INTO users SELECT 'u' || i, 'key', NULL, NULL, 'local', 0, 0 FROM generate_series(1, 20000) i;
INSERT INTO user_access_servers_current SELECT 'u' || i, 1, 'home', 'wss://home/ws' FROM generate_series(1, 20000) i;
INSERT INTO user_event_heads SELECT 'u' || i, 1, 3, 0 FROM generate_series(1, 20000) i;
INSERT INTO user_events SELECT 'u' || i, p, 1, 'u|u|1|1|1', 0 FROM generate_series(1, 20000) i, generate_series(1, 3) p;
INSERT INTO signed_messages (owner_login, message_key, base_key, from_login, to_login, message_type, courier, time_ms, nonce,
    revision_time_ms, reencrypted_at_ms, created_at_ms, stored_at_ms, digest, blob)
SELECT 'alice', format('alice|%s|%s|%s|2', w, i, i), format('alice|%s|%s|%s', w, i, i), 'alice', w, 2, false, i, i, 0, 0, 0, 0, '', 'x'
FROM generate_series(10001, 60000) i, LATERAL (SELECT CASE i % 2 WHEN 0 THEN 'bob' ELSE 'far' END AS w) w;
INSERT INTO dm_delivery_state (from_login, outgoing_key, base_key, incoming_key, to_login, revision_time_ms, reencrypted_at_ms, state,
    attempt_no, accepted_at_ms, next_attempt_at_ms, route_hint, updated_at_ms)
SELECT 'alice', format('alice|far|%s|%s|2', i, i), '', '', 'far', 0, 0, CASE WHEN i % 50 = 0 THEN 'accepted' ELSE 'delivered' END,
       1, 0, CASE WHEN i % 50 = 0 THEN now_ms() + (i - 10000) * 100 END, 'x', 0
FROM generate_series(10001, 110000) i;
INSERT INTO signed_messages (owner_login, message_key, base_key, from_login, to_login, message_type, courier, time_ms, nonce,
    revision_time_ms, reencrypted_at_ms, created_at_ms, stored_at_ms, digest, blob, ref_time_ms, ref_nonce)
SELECT 'alice', format('bob|alice|%s|%s|3', i, i), format('bob|alice|%s|%s', i, i), 'bob', 'alice', 3, false, i, i, 0, 0, 0, 0, ''::bytea, 'x'::bytea, i - 1, i - 1
FROM generate_series(10001, 60000) i
UNION ALL
SELECT 'far', format('alice|far|%s|%s|1', i, i), format('alice|far|%s|%s', i, i), 'alice', 'far', 1, true, i, i, 0, 0, 0, 0, ''::bytea, 'x'::bytea, NULL::bigint, NULL::bigint
FROM generate_series(10001, 60000, 2) i;
INSERT INTO message_tombstones SELECT 'tom', format('tom|bob|%s|%s', i, i), true FROM generate_series(10001, 60000) i;
INSERT INTO conversation_tombstones SELECT 'tom', 'u' || i, i, i FROM generate_series(1, 20000) i;
INSERT INTO read_marks SELECT 'tom', 'u' || i % 100, i, format('u%s|tom|%s|%s|1', i % 100, i, i), i FROM generate_series(1, 20000) i;
UPDATE user_event_heads SET has_marks = true, has_tombstones = true WHERE owner_login = 'tom';
INSERT INTO conversations SELECT 'u' || i, 'u' || j, NULL, NULL, 0, 0 FROM generate_series(1, 2000) i, generate_series(1, 10) j;
-- What was synced long ago, before and after what is not
INSERT INTO dm_sync_outbox (owner_login, primary_message_key, sync_id, stored_at_ms, synced)
SELECT 'two', format('two|x|%s|%s|2', i, i), format('two|x|%s|%s|2:0:0:x', i, i), CASE WHEN i % 2 = 0 THEN now_ms() - i ELSE now_ms() + i END, true FROM generate_series(1, 200000) i;
INSERT INTO user_settings SELECT 'two', 's' || i, 'value', i, '', CASE WHEN i % 2 = 0 THEN now_ms() - i ELSE now_ms() + i END, i % 20000 > 3 FROM generate_series(1, 100000) i;
-- Turns: of one server many that are due later or held by others, of others one
INSERT INTO sync_leases (owner_login, server_login, due_at_ms, lease_owner, lease_until_ms)
SELECT 'u' || i, CASE WHEN i > 19900 THEN 's' || i ELSE 'big' END, CASE WHEN i % 2 = 0 THEN 0 ELSE now_ms() + 9999 END,
       CASE WHEN i % 2 = 0 THEN 'p2' END, CASE WHEN i % 2 = 0 THEN now_ms() + 9999 END FROM generate_series(1, 20000) i;
UPDATE sync_leases SET due_at_ms = 5 WHERE owner_login = 'two';
ANALYZE;

SELECT few($$SELECT * FROM send(msg('alice','bob', (random() * 1e9)::bigint))$$, 400, 'one pair');
SELECT few($$SELECT * FROM recv(msg('far','bob', (random() * 1e9)::bigint))$$, 300, 'one incoming copy');
SELECT few($$SELECT * FROM finish('alice|far|1000|8|2', 1, 2)$$, 150, 'one result');
SELECT few($$SELECT * FROM get_history('alice', 'bob', 20, 30000, '', 100000)$$, 300, 'a page of history from the middle');
SELECT few($$SELECT * FROM events_since(ARRAY['u5', 'u10000', 'u19999'], '{0,2,3}', 100, 100000)$$, 100, 'events of three owners');
SELECT few($$SELECT * FROM send(msg('tom','bob', (random() * 1e9)::bigint))$$, 450, 'one pair of somebody with many tombstones and marks');
SELECT few($$SELECT * FROM read_pair('bob','alice', 20000, 1500, (random() * 1e9)::bigint, ref_time => 20000)$$, 450, 'one receipt');
SELECT few($$SELECT * FROM bury(5, 'alice', 'bob', 20000, n => (random() * 1e9)::bigint, ref_time => 20000)$$, 450, 'one message deleted for both');
SELECT few($$SELECT * FROM bury(6, 'alice', 'far', 20001, n => (random() * 1e9)::bigint, ref_time => 20001)$$, 450, 'one message deleted for oneself');
SELECT few($$SELECT * FROM bury(7, 'alice', 'far', until => 10009, n => (random() * 1e9)::bigint, time_ms => 20000)$$, 600, 'the beginning of a long conversation, courier copies among it');
SELECT few($$SELECT * FROM list_conversations('alice', 20, -1, '', 100000)$$, 200, 'a page of conversations');
SELECT few($$SELECT * FROM send(msg('alice','tom', (random() * 1e9)::bigint, 9))$$, 450, 'one pair to somebody with tombstones');
SELECT few($$SELECT set_user_servers('home', 'faye', '{x,y}', '{wss://x/ws,wss://y/ws}')$$, 150, 'a change of servers');
SELECT few($$SELECT unregister_process('p9')$$, 100, 'a clean stop: only the rows that wait are looked at');
SELECT few($$SELECT * FROM sync_page('home', 'other', true, 'two', 0, '', 5, 3000000, '{}')$$, 150, 'a page of replication');
SELECT few($$SELECT * FROM sync_page('home', 'other', true, 'two', 0, '', 5, 3000000, ARRAY(SELECT 'two|x|' || i || '|' || i || '|2:0:0:x' FROM generate_series(1, 20) i))$$, 300, 'acknowledgements of what is synced');
SELECT few($$SELECT * FROM sync_settings_page('home', 'other', true, 'two', 0, '', 5, 3000000, '{}')$$, 150, 'a page of settings');
SELECT few($$SELECT * FROM put_settings('home', 'p1', '{two}', '{new}', '{v}', '{1}', '{x}', '{NULL}', '{1}', 1000000)$$, 1000, 'one setting');
UPDATE dm_sync_outbox SET synced = false WHERE owner_login = 'two' AND stored_at_ms < now_ms();
SELECT few($$SELECT * FROM sync_page('home', 'other', true, 'two', 0, '', 5, 3000000, ARRAY(SELECT 'two|x|' || i || '|' || i || '|2:0:0:x' FROM generate_series(2, 40, 2) i))$$, 1500, 'acknowledgements beside many that are not synced');
SELECT few($$SELECT * FROM claim_turns('home', 'p1', '{}', 5, 1000)$$, 1000, 'turns of a hundred servers, one due');
SELECT few($$SELECT * FROM tell_history('home', 'p1', NULL)$$, 100, 'nothing left to tell');
SELECT few($$SELECT finish_turn('p1', 'two', 'other', 0, '', 1000, true)$$, 100, 'the end of a turn');
-- What a claim will read: due rows only, in order.
SELECT few($$SELECT * FROM dm_delivery_state WHERE state = 'accepted' AND GREATEST(next_attempt_at_ms, lease_until_ms) <= now_ms() + 1000000
             ORDER BY GREATEST(next_attempt_at_ms, lease_until_ms) LIMIT 50$$, 100, 'due rows');
SELECT * FROM finish();
