-- events_since and get_history.
\ir support.psql
SELECT plan(18);
SELECT make_users();
SELECT send(msg('alice','bob', 1), msg('alice','bob', 2), msg('bob','alice', 3), msg('alice','far', 4));
SELECT finish('alice|far|1000|4|2', 1, 1, 'x');

SELECT results_eq($$SELECT ord, owner_login, pts, kind, more, message_key, from_login, to_login, message_type, delivery_state, encode(blob, 'escape')
        FROM events_since('{bob,alice}', '{1,2}', 10, 1000)$$,
    $$VALUES (1, 'bob', 2::bigint, 1, true, 'alice|bob|1000|2|1', 'alice', 'bob', 1, NULL, 'in alice bob 2 0'),
             (1, 'bob', 3, 1, false, 'bob|alice|1000|3|2', 'bob', 'alice', 2, 'delivered', 'out bob alice 3 0'),
             (2, 'alice', 3, 1, true, 'bob|alice|1000|3|1', 'bob', 'alice', 1, NULL, 'in bob alice 3 0'),
             (2, 'alice', 4, 1, true, 'alice|far|1000|4|2', 'alice', 'far', 2, 'delivered', 'out alice far 4 0'),
             (2, 'alice', 5, 2, false, 'alice|far|1000|4|2', 'alice', 'far', 2, 'delivered', NULL)$$, 'events of two owners after a position each');
SELECT is_empty($$SELECT 1 FROM events_since('{bob,alice,nobody}', '{3,99,0}', 10, 1000)$$, 'nothing new, a position beyond the end, an owner without log');
SELECT results_eq($$SELECT pts, more FROM events_since('{alice}', '{0}', 2, 1000)$$, $$VALUES (1::bigint, true), (2, true)$$, 'limit');
SELECT results_eq($$SELECT pts, more FROM events_since('{alice}', '{0}', 10, 34)$$, $$VALUES (1::bigint, true), (2, true)$$, 'byte bound');
SELECT results_eq($$SELECT pts FROM events_since('{alice}', '{0}', 10, 1)$$, $$VALUES (1::bigint)$$, 'at least one');
SELECT results_eq($$SELECT base_key FROM events_since('{alice}', '{4}', 10, 1000)$$, $$VALUES ('alice|far|1000|4')$$, 'base key of a state event');
DELETE FROM signed_messages WHERE message_key = 'alice|bob|1000|2|1';
SELECT results_eq($$SELECT pts, gone, message_type, blob FROM events_since('{bob}', '{1}', 1, 1000)$$, $$VALUES (2::bigint, true, 1, NULL::bytea)$$, 'a row that is gone leaves no hole');
SELECT send(msg('alice','bob', 1, 9));
SELECT results_eq($$SELECT pts, revision_time_ms FROM events_since('{bob}', '{0}', 1, 1000)$$, $$VALUES (1::bigint, 9::bigint)$$, 'an old event shows the current revision');

-- History
SELECT send(VARIADIC (SELECT array_agg(msg('two','tom', 1000 + i, time_ms => 1000 + i / 3)) FROM generate_series(1, 30) i));
SELECT send(msg('tom','two', 1, time_ms => 1005), msg('two','alice', 1), msg('two','far', 2), msg('two','two', 3));
CREATE FUNCTION page(own text, w text, lim int, t bigint DEFAULT -1, k text DEFAULT '', bytes bigint DEFAULT 100000) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT message_key || CASE WHEN more AND lead(1) OVER () IS NULL THEN ' +' ELSE '' END FROM get_history(own, w, lim, t, k, bytes) $$;
SELECT results_eq($$SELECT page('two','tom', 31)$$, $$SELECT message_key COLLATE "default" FROM signed_messages WHERE owner_login = 'two' AND with_login = 'tom' ORDER BY time_ms DESC, signed_messages.message_key DESC$$, 'the whole conversation, newest first, both directions');
SELECT results_eq($$SELECT page('two','tom', 3)$$, $$VALUES ('two|tom|1010|1030|2'), ('two|tom|1009|1029|2'), ('two|tom|1009|1028|2 +')$$, 'a page, and there is more');
SELECT results_eq($$SELECT page('two','tom', 2, 1009, 'two|tom|1009|1028|2')$$, $$VALUES ('two|tom|1009|1027|2'), ('two|tom|1008|1026|2 +')$$, 'the next page begins inside one time');
SELECT results_eq($$SELECT page('two','tom', 1, 1009)$$, $$VALUES ('two|tom|1008|1026|2 +')$$, 'an empty key: none of that time');
SELECT is((WITH RECURSIVE w AS (
        SELECT * FROM (SELECT time_ms, message_key FROM get_history('two','tom', 4, -1, '', 1000) ORDER BY 1, 2 LIMIT 1) z
        UNION ALL SELECT n.* FROM w, LATERAL (SELECT time_ms, message_key FROM get_history('two','tom', 4, w.time_ms, w.message_key, 1000) ORDER BY 1, 2 LIMIT 1) n)
    SELECT count(*) FROM w)::int, 8, '31 items are 8 pages of 4');
SELECT results_eq($$SELECT page('two','tom', 10, bytes => 20)$$, $$VALUES ('two|tom|1010|1030|2 +')$$, 'byte bound');
SELECT results_eq($$SELECT page('two','tom', 10, bytes => 1)$$, $$VALUES ('two|tom|1010|1030|2 +')$$, 'at least one');
SELECT results_eq($$SELECT page('two','two', 10)$$, $$VALUES ('two|two|1000|3|2'), ('two|two|1000|3|1')$$, 'notes to self show both copies');
SELECT is_empty($$SELECT page('far','two', 10)$$, 'courier copies are nobody''s history');
SELECT results_eq($$SELECT delivery_state, read_at_ms FROM get_history('two','far', 1, -1, '', 1000) UNION ALL SELECT delivery_state, read_at_ms FROM get_history('two','two', 2, -1, '', 1000)$$,
    $$VALUES ('accepted', NULL::bigint), ('delivered', NULL), (NULL, NULL)$$, 'the state is shown with outgoing copies');
SELECT * FROM finish();
