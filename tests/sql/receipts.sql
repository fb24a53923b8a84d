-- Read receipts: read times whichever came first, unread counts, delivery, events.
\ir support.psql
SELECT plan(29);
SELECT make_users();
CREATE FUNCTION read_at(own text, k text) RETURNS bigint LANGUAGE sql AS $$ SELECT read_at_ms FROM signed_messages WHERE owner_login = own AND message_key = k $$;
CREATE FUNCTION conv(own text, w text) RETURNS text LANGUAGE sql AS $$
    SELECT format('%s unread, last %s, read %s', unread_count, coalesce(last_message_key, '-'), coalesce(last_read_at_ms::text, '-')) FROM conversations WHERE owner_login = own AND with_login = w $$;

SELECT send(msg('alice','bob', 1), msg('alice','bob', 2));
SELECT is(conv('bob', 'alice'), '2 unread, last alice|bob|1000|2|1, read -', 'two unread');
SELECT is(conv('alice', 'bob'), '0 unread, last alice|bob|1000|2|2, read -', 'the author has nothing to read');
SELECT results_eq($$SELECT verdict, state, from_pts, to_pts, attempt FROM read_pair('bob','alice', 1, 1500)$$,
    $$VALUES (0, 'delivered', 3::bigint, 3::bigint, false)$$, 'a receipt is stored, delivered and told to both');
SELECT results_eq($$SELECT read_at('alice', 'alice|bob|1000|1|2'), read_at('bob', 'alice|bob|1000|1|1'), read_at('bob', 'alice|bob|1000|2|1')$$,
    $$VALUES (1500::bigint, 1500::bigint, NULL::bigint)$$, 'both copies of what was read carry the time, others not');
SELECT is(conv('bob', 'alice'), '1 unread, last alice|bob|1000|2|1, read 1500', 'one less unread');
SELECT is(conv('alice', 'bob'), '0 unread, last alice|bob|1000|2|2, read -', 'the author''s list: nothing of his was read by himself');
SELECT is((SELECT count(*) FROM user_events WHERE kind = 2)::int, 0, 'the state of a receipt is no event');
SELECT results_eq($$SELECT ref_time_ms, ref_nonce, message_type::int FROM signed_messages WHERE nonce = 500 ORDER BY 3$$,
    $$VALUES (1000::bigint, 1::bigint, 3), (1000, 1, 4)$$, 'what it references is kept with it');

-- Earliest of all, counted once
SELECT read_pair('bob','alice', 1, 1400, 501); SELECT read_pair('bob','alice', 1, 1600, 502);
SELECT is(read_at('alice', 'alice|bob|1000|1|2'), 1400::bigint, 'the earliest time stays');
SELECT is(conv('bob', 'alice'), '1 unread, last alice|bob|1000|2|1, read 1600', 'read twice counts once; the latest reading is the conversation''s');
SELECT results_eq($$SELECT verdict, from_pts, to_pts FROM read_pair('bob','alice', 1, 1600, 502)$$, $$VALUES (0, 0::bigint, 0::bigint)$$, 'a repeat changes nothing');
SELECT send(msg('alice','bob', 1, 7));
SELECT is(read_at('bob', 'alice|bob|1000|1|1'), 1400::bigint, 'an edit keeps the read time');
SELECT is(conv('bob', 'alice'), '1 unread, last alice|bob|1000|2|1, read 1600', 'and what is unread');

-- Receipt first
SELECT read_pair('bob','alice', 3, 1700, 510); SELECT read_pair('bob','alice', 3, 1650, 511);
SELECT results_eq($$SELECT owner_login, text_key, read_at_ms FROM read_marks ORDER BY 1$$,
    $$VALUES ('alice' COLLATE "C", 'alice|bob|1000|3|2' COLLATE "C", 1650::bigint), ('bob', 'alice|bob|1000|3|1', 1650)$$, 'a receipt before its text leaves marks');
SELECT send(msg('alice','bob', 3), msg('alice','bob', 4));
SELECT results_eq($$SELECT read_at('alice', 'alice|bob|1000|3|2'), read_at('bob', 'alice|bob|1000|3|1'), read_at('bob', 'alice|bob|1000|4|1')$$,
    $$VALUES (1650::bigint, 1650::bigint, NULL::bigint)$$, 'which the text takes over');
SELECT is((SELECT count(*) FROM read_marks)::int, 0, 'and away');
SELECT is(conv('bob', 'alice'), '2 unread, last alice|bob|1000|4|1, read 1700', 'what was read before it came is not unread');

-- Same key, other bytes: both have had effect
SELECT read_pair('bob','alice', 4, 1900, 520); SELECT read_pair('bob','alice', 4, 1800, 520);
SELECT is(read_at('alice', 'alice|bob|1000|4|2'), 1800::bigint, 'the earliest counts, whichever bytes are kept');
SELECT is(conv('bob', 'alice'), '1 unread, last alice|bob|1000|4|1, read 1900', 'counted once');
-- Copies that a server brings need not be a pair
SELECT read_pair('bob','alice', 2, 1950, 530, true, own_ref => 9);
SELECT results_eq($$SELECT read_at('alice', 'alice|bob|1000|2|2'), read_at('bob', 'alice|bob|1000|2|1')$$, $$VALUES (1950::bigint, NULL::bigint)$$, 'each copy acts on its own reference');

-- Elsewhere
SELECT recv(msg('far','bob', 1)); SELECT recv(msg('far','bob', 2));
SELECT results_eq($$SELECT verdict, state, attempt, route1 FROM read_pair('bob','far', 1, 1500, 540)$$, $$VALUES (0, 'accepted', true, 'x')$$, 'a receipt for an author elsewhere is delivered like a text');
SELECT results_eq($$SELECT owner_login, courier FROM signed_messages WHERE nonce = 540 ORDER BY 1$$, $$VALUES ('bob' COLLATE "C", false), ('far', true)$$, 'with a courier copy');
SELECT results_eq($$SELECT recorded, state, from_pts FROM finish('bob|far|2000|540|4', 1, 1, 'x')$$, $$VALUES (true, 'delivered', 0::bigint)$$, 'delivered without an event');
SELECT send(msg('alice','far', 1));
SELECT results_eq($$SELECT verdict, to_pts > 0 FROM read_in('far','alice', 1, 1500)$$, $$VALUES (0, true)$$, 'a receipt from elsewhere');
SELECT is(read_at('alice', 'alice|far|1000|1|2'), 1500::bigint, 'marks the author''s copy');
SELECT results_eq($$SELECT read_at_ms FROM get_history('alice', 'far', 1, -1, '', 1000)$$, $$VALUES (1500::bigint)$$, 'as the history shows');
SELECT results_eq($$SELECT verdict FROM read_pair('bob','alice', 1, now_ms() + 900001, 550)$$, $$VALUES (3)$$, 'a read time is held to max_future, too');

-- Notes to self
SELECT send(msg('tom','tom', 1)); SELECT read_pair('tom','tom', 1, 1500, 560);
SELECT is(conv('tom', 'tom'), '0 unread, last tom|tom|1000|1|2, read 1500', 'notes to self are never unread');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
