-- The outbox rows that accepted pairs leave for the second servers of their owners.
\ir support.psql
SELECT plan(13);
SELECT make_users();

SELECT send(msg('alice','bob'), msg('alice','far'));
SELECT is((SELECT count(*) FROM dm_sync_outbox)::int, 0, 'owners without a second server have no rows');
SELECT send(msg('two','bob', 1), msg('alice','two', 2), msg('two','far', 3), msg('tom','two', 4), msg('two','two', 5), msg('two','far', 6, by_server => true));
SELECT results_eq($$SELECT owner_login, primary_message_key, synced, push_due_at_ms - now_ms() FROM dm_sync_outbox ORDER BY 2, 1$$,
    $$VALUES ('two' COLLATE "C", 'alice|two|1000|2|1' COLLATE "C", false, 0::bigint), ('two', 'tom|two|1000|4|1', false, 0),
             ('tom', 'tom|two|1000|4|2', false, 0), ('two', 'two|bob|1000|1|2', false, 0), ('two', 'two|far|1000|3|2', false, 30000),
             ('two', 'two|far|1000|6|2', false, 0), ('two', 'two|two|1000|5|1', false, 0), ('two', 'two|two|1000|5|2', false, 0)$$,
    'one row per served owner and item; a pair whose first attempt is under way waits for it');
SELECT is((SELECT sync_id FROM dm_sync_outbox WHERE primary_message_key = 'two|far|1000|3|2'),
    'two|far|1000|3|2:0:0:' || left(encode(sha256('in two far 3 0out two far 3 0'), 'hex'), 16), 'a pair is two blobs, incoming then outgoing');
SELECT is((SELECT sync_id FROM dm_sync_outbox WHERE primary_message_key = 'alice|two|1000|2|1'),
    'alice|two|1000|2|1:0:0:' || left(encode(sha256('in alice two 2 0'), 'hex'), 16), 'a received copy is one');

SELECT finish('two|far|1000|3|2', 1, 2, error => 'refused');
SELECT results_eq($$SELECT push_due_at_ms - now_ms() FROM dm_sync_outbox WHERE primary_message_key = 'two|far|1000|3|2'$$, $$VALUES (0::bigint)$$, 'due when the first attempt is recorded');

SELECT send(msg('two','bob', 10, source => 'other'), msg('two','tom', 11, source => 'other'), msg('two','bob', 12, source => 'x'));
SELECT results_eq($$SELECT primary_message_key, synced, push_due_at_ms FROM dm_sync_outbox WHERE primary_message_key ~ '\|1[01]\|' ORDER BY 1$$,
    $$VALUES ('two|bob|1000|10|2' COLLATE "C", true, NULL::bigint), ('two|tom|1000|11|1', true, NULL), ('two|tom|1000|11|2', true, NULL)$$, 'from the owner''s second server: synced, never offered back');
SELECT is((SELECT synced FROM dm_sync_outbox WHERE primary_message_key = 'two|bob|1000|12|2'), false, 'from anybody else: not');

SELECT send(msg('two','bob', 10, 5));
SELECT results_eq($$SELECT synced, push_due_at_ms - now_ms(), sync_id LIKE 'two|bob|1000|10|2:5:0:%', row_version FROM dm_sync_outbox WHERE primary_message_key = 'two|bob|1000|10|2'$$,
    $$VALUES (false, 0::bigint, true, 2::bigint)$$, 'an edit is unsynced');
SELECT send(msg('two','bob', 10, 4, source => 'other'));
SELECT is((SELECT synced FROM dm_sync_outbox WHERE primary_message_key = 'two|bob|1000|10|2'), false, 'an older one from the second server leaves it so');
SELECT send(msg('two','bob', 10, 5, source => 'other'));
SELECT is((SELECT synced FROM dm_sync_outbox WHERE primary_message_key = 'two|bob|1000|10|2'), true, 'the same one from there settles it');
CREATE TEMP TABLE before AS SELECT * FROM dm_sync_outbox;
SELECT send(msg('two','bob', 10, 5), msg('two','far', 3));
SELECT results_eq('SELECT * FROM dm_sync_outbox ORDER BY 1, 2', 'SELECT * FROM before ORDER BY 1, 2', 'a repeat touches no row');

-- A pair of which only one copy is newer
SELECT send(msg('two','bob', 20, 9, i => 'I', o => 'O'));
SELECT is((SELECT sync_id FROM dm_sync_outbox WHERE primary_message_key = 'two|bob|1000|20|2'),
    'two|bob|1000|20|2:9:0:' || left(encode(sha256('IO'), 'hex'), 16), 'sync id names the stored revision');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
