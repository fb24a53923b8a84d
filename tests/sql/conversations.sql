-- The list of conversations, and how it is kept.
\ir support.psql
SELECT plan(17);
SELECT make_users();
CREATE FUNCTION list(own text, lim int DEFAULT 100, t bigint DEFAULT -1, w text DEFAULT '', bytes bigint DEFAULT 100000) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT format('%s %s %s unread%s', with_login, message_key, unread_count, CASE WHEN more AND lead(1) OVER () IS NULL THEN ' +' ELSE '' END)
    FROM list_conversations(own, lim, t, w, bytes) $$;

SELECT is_empty($$SELECT list('alice')$$, 'nothing yet');
SELECT send(msg('bob','alice', 1, time_ms => 100), msg('bob','alice', 2, time_ms => 300), msg('alice','bob', 3, time_ms => 200), msg('alice','far', 4, time_ms => 250), msg('two','alice', 5, time_ms => 250), msg('alice','alice', 6, time_ms => 50));
SELECT results_eq($$SELECT list('alice')$$, $$VALUES ('bob bob|alice|300|2|1 2 unread'), ('two two|alice|250|5|1 1 unread'), ('far alice|far|250|4|2 0 unread'), ('alice alice|alice|50|6|2 0 unread')$$, 'newest first, then by name');
SELECT is_empty($$SELECT list('far')$$, 'a courier copy is in nobody''s list');
SELECT results_eq($$SELECT list('alice', 2)$$, $$VALUES ('bob bob|alice|300|2|1 2 unread'), ('two two|alice|250|5|1 1 unread +')$$, 'a page');
SELECT results_eq($$SELECT list('alice', 2, 250, 'two')$$, $$VALUES ('far alice|far|250|4|2 0 unread'), ('alice alice|alice|50|6|2 0 unread')$$, 'the next begins inside one time');
SELECT results_eq($$SELECT list('alice', 1, 250)$$, $$VALUES ('alice alice|alice|50|6|2 0 unread')$$, 'an empty name: none of that time');
SELECT results_eq($$SELECT list('alice', bytes => 20)$$, $$VALUES ('bob bob|alice|300|2|1 2 unread +')$$, 'byte bound, at least one');
SELECT results_eq($$SELECT last_time_ms, last_read_at_ms, time_ms, message_type, delivery_state, encode(blob, 'escape') FROM list_conversations('alice', 3, 260, '', 1000)$$,
    $$VALUES (250::bigint, NULL::bigint, 250::bigint, 1, NULL, 'in two alice 5 0'), (250, NULL, 250, 2, 'accepted', 'out alice far 4 0'), (50, NULL, 50, 2, 'delivered', 'out alice alice 6 0')$$, 'with the last text');
SELECT send(msg('bob','alice', 2, 9, time_ms => 300), msg('bob','alice', 1, 9, time_ms => 100));
SELECT results_eq($$SELECT list('alice', 1)$$, $$VALUES ('bob bob|alice|300|2|1 2 unread +')$$, 'edits count nothing twice and move nothing');
SELECT bury(6, 'alice', 'bob', 2, by_to => true, ref_time => 300);
SELECT results_eq($$SELECT list('alice', 2, 251)$$, $$VALUES ('two two|alice|250|5|1 1 unread'), ('far alice|far|250|4|2 0 unread +')$$, 'deleting the last text');
SELECT results_eq($$SELECT list('alice', 1, 201)$$, $$VALUES ('bob alice|bob|200|3|2 1 unread +')$$, 'makes the one before it the last');
SELECT read_pair('alice','bob', 1, 900, ref_time => 100);
SELECT results_eq($$SELECT unread_count, last_read_at_ms FROM list_conversations('alice', 1, 201, '', 1000)$$, $$VALUES (0::bigint, 900::bigint)$$, 'read');
SELECT bury(7, 'bob', 'alice', until => 1000);
SELECT is((SELECT string_agg(l, ',') FROM list('alice') l), 'two two|alice|250|5|1 1 unread,far alice|far|250|4|2 0 unread,alice alice|alice|50|6|2 0 unread', 'an empty conversation is not listed');
SELECT send(msg('bob','alice', 8, time_ms => 2000));
SELECT results_eq($$SELECT message_key, unread_count, last_read_at_ms FROM list_conversations('alice', 1, -1, '', 1000)$$, $$VALUES ('bob|alice|2000|8|1', 1::bigint, 900::bigint)$$, 'until it is taken up again');
-- A courier copy that becomes the recipient's is new to him
SELECT set_user_servers('home', 'far', '{home}', '{wss://home/ws}'); SELECT recv(msg('alice','far', 4, time_ms => 250));
SELECT results_eq($$SELECT list('far')$$, $$VALUES ('alice alice|far|250|4|1 1 unread')$$, 'a courier copy that becomes its owner''s');
SELECT send(VARIADIC (SELECT array_agg(msg((ARRAY['bob','two','tom'])[1 + i % 3], 'alice', 100 + i, time_ms => 5000 - i % 7)) FROM generate_series(1, 100) i));
SELECT results_eq($$SELECT with_login, unread_count FROM list_conversations('alice', 3, -1, '', 100000)$$, $$VALUES ('two', 35::bigint), ('tom', 33), ('bob', 34)$$, 'a batch of one conversation');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
