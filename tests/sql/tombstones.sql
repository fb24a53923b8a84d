-- Tombstones: who holds them, what they cover before and after, what goes along, delivery and outbox.
\ir support.psql
SELECT plan(61);
SELECT make_users();
CREATE FUNCTION held() RETURNS SETOF text LANGUAGE sql AS $$ SELECT x FROM (SELECT owner_login || ' ' || message_key AS x FROM signed_messages) y ORDER BY x COLLATE "C" $$;
CREATE FUNCTION rows() RETURNS SETOF text LANGUAGE sql AS $$ SELECT x FROM (SELECT outgoing_key || ' ' || state AS x FROM dm_delivery_state) y ORDER BY x COLLATE "C" $$;
CREATE FUNCTION wipe() RETURNS void LANGUAGE sql AS $$
    TRUNCATE signed_messages, dm_delivery_state, dm_sync_outbox, user_events, message_tombstones, conversation_tombstones, read_marks, conversations;
    UPDATE user_event_heads SET last_pts = 0, has_marks = false, has_tombstones = false $$;

-- Verdicts
SELECT results_eq($$SELECT verdict FROM bury(5, 'far', 'faye') UNION ALL SELECT verdict FROM bury(6, 'far', 'alice') UNION ALL SELECT verdict FROM bury(8, 'far', 'alice')
        UNION ALL SELECT verdict FROM bury(5, 'nobody', 'alice') UNION ALL SELECT verdict FROM bury(6, 'alice', 'nobody')$$,
    $$VALUES (1), (1), (1), (2), (2)$$, 'neither party served, only the other party served, unknown users');
SELECT results_eq($$SELECT verdict FROM bury(5, 'alice', 'bob', time_ms => now_ms() + 900001) UNION ALL SELECT verdict FROM bury(5, 'alice', 'bob', time_ms => now_ms() + 86400001, by_server => true)
        UNION ALL SELECT verdict FROM bury(7, 'alice', 'bob', time_ms => now_ms() + 1000, until => now_ms() + 1)$$,
    $$VALUES (3), (3), (3)$$, 'times ahead; a client''s until may not be ahead at all');
SELECT is_empty('SELECT held()', 'nothing was stored');
SELECT results_eq($$SELECT verdict FROM bury(7, 'alice', 'bob', until => now_ms(), time_ms => now_ms() + 900000) UNION ALL SELECT verdict FROM bury(7, 'alice', 'bob', until => now_ms() + 1000, time_ms => now_ms() + 1000, by_server => true)$$,
    $$VALUES (0), (0)$$, 'at the bounds');
SELECT wipe();

-- Type 5, both served here, by the author and by the reader
SELECT send(msg('alice','bob', 1), msg('alice','bob', 2)); SELECT read_pair('bob','alice', 1, 1500); SELECT read_pair('bob','alice', 2, 1500, 501);
SELECT results_eq($$SELECT verdict, state, from_pts, to_pts, attempt FROM bury(5, 'alice', 'bob', 1)$$, $$VALUES (0, 'delivered', 5::bigint, 5::bigint, false)$$, 'both parties are told');
SELECT results_eq('SELECT held()', $$VALUES ('alice alice|bob|1000|2|2'), ('alice alice|bob|3000|900|5'), ('alice bob|alice|2000|501|3'),
    ('bob alice|bob|1000|2|1'), ('bob alice|bob|3000|900|5'), ('bob bob|alice|2000|501|4')$$, 'both copies and the receipts for them are gone, both hold the tombstone');
SELECT results_eq('SELECT rows()', $$VALUES ('alice|bob|1000|2|2 delivered'), ('alice|bob|3000|900|5 delivered'), ('bob|alice|2000|501|4 delivered')$$, 'and so are their delivery rows');
SELECT results_eq($$SELECT pts, gone, blob IS NULL FROM events_since('{bob}', '{0}', 1, 1000)$$, $$VALUES (1::bigint, true, true)$$, 'the event of what is gone says so');
SELECT results_eq($$SELECT pts, gone, message_type, delivery_state FROM events_since('{alice,bob}', '{4,4}', 1, 1000)$$, $$VALUES (5::bigint, false, 5, 'delivered'), (5, false, 5, NULL)$$, 'the tombstone is an event');
SELECT results_eq($$SELECT verdict FROM send(msg('alice','bob', 1)) UNION ALL SELECT verdict FROM send(msg('alice','bob', 1, 9)) UNION ALL SELECT verdict FROM read_pair('bob','alice', 1, 1500)$$, $$VALUES (4), (4), (4)$$, 'a client may not send it again, nor edit, nor read it');
SELECT results_eq($$SELECT verdict, state, attempt FROM send(msg('alice','bob', 1, by_server => true))$$, $$VALUES (0, 'accepted', false)$$, 'to a server that brings it again it is a success');
SELECT results_eq($$SELECT verdict, to_pts FROM recv(msg('alice','bob', 1)) UNION ALL SELECT verdict, to_pts FROM read_in('bob','alice', 1, 1500)$$, $$VALUES (0, 0::bigint), (0, 0)$$, 'alone, too');
SELECT is((SELECT count(*) FROM signed_messages)::int, 6, 'nothing came back');
SELECT results_eq($$SELECT verdict, state, from_pts, to_pts FROM bury(5, 'alice', 'bob', 1)$$, $$VALUES (0, 'delivered', 0::bigint, 0::bigint)$$, 'a repeat changes nothing');
SELECT bury(5, 'bob', 'alice', 2, by_to => true);
SELECT results_eq('SELECT held()', $$VALUES ('alice alice|bob|3000|900|5'), ('alice bob|alice|3000|900|5'), ('bob alice|bob|3000|900|5'), ('bob bob|alice|3000|900|5')$$, 'the reader deletes for both as well');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT wipe();

-- Type 6
SELECT send(msg('alice','bob', 1)); SELECT read_pair('bob','alice', 1, 1500);
SELECT results_eq($$SELECT verdict, state, from_pts, to_pts FROM bury(6, 'alice', 'bob', 1)$$, $$VALUES (0, 'accepted', 4::bigint - 1, 0::bigint)$$, 'only its author is told');
SELECT results_eq('SELECT held()', $$VALUES ('alice alice|bob|3000|900|6'), ('bob alice|bob|1000|1|1'), ('bob bob|alice|2000|500|4')$$, 'only his copies are gone');
SELECT results_eq('SELECT rows()', $$VALUES ('alice|bob|1000|1|2 delivered'), ('bob|alice|2000|500|4 delivered')$$, 'delivery rows stay; a tombstone for oneself has none');
SELECT results_eq($$SELECT verdict, from_pts, to_pts > 0 FROM send(msg('alice','bob', 1, 9))$$, $$VALUES (0, 0::bigint, true)$$, 'an edit still goes to the recipient');
SELECT bury(6, 'bob', 'alice', 1, by_to => true);
SELECT results_eq('SELECT held()', $$VALUES ('alice alice|bob|3000|900|6'), ('bob bob|alice|3000|900|6')$$, 'both have deleted it for themselves');
SELECT is_empty('SELECT rows()', 'and nothing is left to deliver');
SELECT results_eq($$SELECT verdict FROM send(msg('alice','bob', 1))$$, $$VALUES (4)$$, 'both copies are covered, by one tombstone each');
SELECT wipe();
-- before the text
SELECT bury(6, 'alice', 'bob', 1);
SELECT results_eq($$SELECT verdict, state, from_pts, to_pts FROM send(msg('alice','bob', 1))$$, $$VALUES (0, 'delivered', 0::bigint, 1::bigint)$$, 'before the text: the recipient gets it all the same');
SELECT bury(6, 'bob', 'alice', 2, by_to => true);
SELECT results_eq($$SELECT verdict, state, from_pts > 0, to_pts FROM send(msg('alice','bob', 2))$$, $$VALUES (0, 'delivered', true, 0::bigint)$$, 'a copy that its recipient does not want counts as delivered');
SELECT results_eq($$SELECT verdict, to_pts FROM recv(msg('far','alice', 3)) UNION ALL SELECT b.verdict, r.to_pts FROM bury(6, 'alice', 'far', 4, by_to => true) b, recv(msg('far','alice', 4)) r$$,
    $$VALUES (0, 2::bigint + 1), (0, 0)$$, 'and one that comes alone, too');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT wipe();

-- A delivery on its way
SELECT send(msg('alice','far', 1), msg('alice','far', 2));
SELECT bury(6, 'alice', 'far', 1);
SELECT results_eq('SELECT rows()', $$VALUES ('alice|far|1000|1|2 accepted'), ('alice|far|1000|2|2 accepted')$$, 'type 6 leaves it alone');
SELECT results_eq($$SELECT verdict, state, attempt, lease_ms, route1, route2, from_pts > 0, to_pts FROM bury(5, 'alice', 'far', 1)$$,
    $$VALUES (0, 'accepted', true, 30000::bigint, 'x', 'y', true, 0::bigint)$$, 'type 5 is itself delivered');
SELECT results_eq('SELECT rows()', $$VALUES ('alice|far|1000|2|2 accepted'), ('alice|far|3000|900|5 accepted')$$, 'what is deleted for both is not');
SELECT is((SELECT count(*) FROM signed_messages WHERE owner_login = 'far')::int, 1, 'its courier copy is gone, though the author''s went before');
SELECT results_eq($$SELECT recorded FROM finish('alice|far|1000|1|2', 1, 1, 'x')$$, $$VALUES (false)$$, 'a late result finds nothing');
SELECT results_eq($$SELECT lease_owner, incoming_key, to_login, route_hint FROM dm_delivery_state WHERE outgoing_key = 'alice|far|3000|900|5'$$,
    $$VALUES ('p1' COLLATE "C", 'alice|far|3000|900|5' COLLATE "C", 'far' COLLATE "C", 'x' COLLATE "C")$$, 'the row of a tombstone is named after it');
SELECT results_eq($$SELECT attempt FROM bury(5, 'alice', 'far', 1) UNION ALL SELECT attempt FROM bury(5, 'alice', 'far', 3, n => 901, by_server => true) UNION ALL SELECT attempt FROM bury(6, 'alice', 'far', 3, n => 902)$$,
    $$VALUES (false), (false), (false)$$, 'no second attempt; what a server brings is left to deliveryd');
SELECT results_eq($$SELECT next_attempt_at_ms - now_ms(), lease_owner FROM dm_delivery_state WHERE outgoing_key = 'alice|far|3000|901|5'$$, $$VALUES (0::bigint, NULL COLLATE "C")$$, 'due at once');
SELECT results_eq($$SELECT recorded, state, from_pts FROM finish('alice|far|3000|900|5', 1, 1, 'x')$$, $$VALUES (true, 'delivered', 0::bigint)$$, 'delivered, without an event');
SELECT results_eq($$SELECT verdict, to_pts > 0, from_pts FROM bury(5, 'far', 'alice', 7)$$, $$VALUES (0, true, 0::bigint)$$, 'one from elsewhere is held by whom it concerns');
SELECT is((SELECT count(*) FROM dm_delivery_state WHERE from_login = 'far')::int, 0, 'without a row');
SELECT results_eq($$SELECT verdict FROM recv(msg('far','alice', 7)) UNION ALL SELECT count(*)::int FROM signed_messages WHERE from_login = 'far' AND message_type = 1$$, $$VALUES (0), (0)$$, 'and covers what comes later');
SELECT wipe();

-- Conversations
SELECT send(msg('alice','bob', 1, time_ms => 100), msg('bob','alice', 2, time_ms => 200), msg('alice','bob', 3, time_ms => 300), msg('alice','far', 4, time_ms => 100));
SELECT read_pair('bob','alice', 1, 150, 500, ref_time => 100); SELECT read_pair('bob','alice', 3, 350, 501, ref_time => 300); SELECT read_pair('bob','alice', 9, 350, 502, ref_time => 199);
SELECT bury(7, 'bob', 'alice', until => 200);
SELECT results_eq('SELECT held()', $$VALUES ('alice alice|bob|300|3|2'), ('alice alice|far|100|4|2'), ('alice bob|alice|2000|501|3'), ('alice bob|alice|3000|900|7'),
    ('bob alice|bob|300|3|1'), ('bob bob|alice|2000|501|4'), ('bob bob|alice|3000|900|7'), ('far alice|far|100|4|1')$$, 'type 7: texts up to the time, receipts for them, other conversations not');
SELECT results_eq('SELECT rows()', $$VALUES ('alice|bob|300|3|2 delivered'), ('alice|far|100|4|2 accepted'), ('bob|alice|2000|501|4 delivered'), ('bob|alice|3000|900|7 delivered')$$, 'delivery rows');
SELECT is((SELECT count(*) FROM read_marks)::int, 0, 'marks of texts that will never come');
SELECT results_eq($$SELECT verdict FROM send(msg('alice','bob', 10, time_ms => 200), msg('bob','alice', 10, time_ms => 200), msg('alice','bob', 10, time_ms => 201)) ORDER BY ord$$, $$VALUES (4), (4), (0)$$, 'covered by time, both directions');
SELECT bury(7, 'alice', 'bob', until => 50, n => 901); SELECT bury(8, 'alice', 'bob', until => 300, n => 902);
SELECT results_eq($$SELECT both_until_ms, own_until_ms FROM conversation_tombstones ORDER BY owner_login$$, $$VALUES (200::bigint, 300::bigint), (200, NULL)$$, 'the largest times of each kind count');
SELECT results_eq($$SELECT h FROM held() h WHERE h NOT LIKE '% alice|far|%' AND right(h, 1) < '5'$$,
    $$VALUES ('bob alice|bob|201|10|1'), ('bob alice|bob|300|3|1'), ('bob bob|alice|2000|501|4')$$, 'type 8 takes its author''s copies only');
SELECT results_eq($$SELECT verdict, from_pts, to_pts > 0 FROM send(msg('alice','bob', 11, time_ms => 250))$$, $$VALUES (0, 0::bigint, true)$$, 'and covers only those');
SELECT bury(7, 'alice', 'far', until => 100);
SELECT is((SELECT count(*) FROM signed_messages WHERE owner_login = 'far')::int, 0, 'type 7 finds courier copies');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT wipe();

-- Same key, other bytes: both have effect, the larger hash is kept
SELECT send(msg('alice','bob', 1), msg('alice','bob', 2));
SELECT bury(6, 'alice', 'bob', 1, bytes => 'aa'), bury(6, 'alice', 'bob', 2, bytes => 'bb');
SELECT results_eq('SELECT held()', $$VALUES ('alice alice|bob|3000|900|6'), ('bob alice|bob|1000|1|1'), ('bob alice|bob|1000|2|1')$$, 'two tombstones of one key have both had effect');
SELECT is((SELECT digest FROM signed_messages WHERE message_type = 6), GREATEST(sha256('aa'), sha256('bb')), 'the larger SHA-256 is stored');
-- Notes to self
SELECT send(msg('alice','alice', 5)); SELECT bury(6, 'alice', 'alice', 5, n => 910);
SELECT is((SELECT count(*) FROM signed_messages WHERE nonce = 5)::int, 0, 'a note to self goes with both copies');
SELECT results_eq($$SELECT verdict, state, from_pts > 0, to_pts, attempt FROM bury(5, 'alice', 'alice', 6, n => 911)$$, $$VALUES (0, 'accepted', true, 0::bigint, false)$$, 'a tombstone to oneself is one copy, no delivery');
SELECT results_eq($$SELECT verdict FROM send(msg('alice','alice', 5), msg('alice','alice', 6)) ORDER BY ord$$, $$VALUES (4), (4)$$, 'both are covered');
SELECT wipe();

-- Outbox
SELECT send(msg('two','tom', 1), msg('two','tom', 2), msg('two','far', 3)); SELECT send(msg('two','tom', 4, source => 'other'));
SELECT bury(6, 'tom', 'two', 1, by_to => true, n => 901), bury(6, 'tom', 'two', 4, by_to => true, n => 904);
SELECT results_eq($$SELECT sync_id = 'two|tom|1000|' || n || '|2:0:0:' || left(encode(sha256(format('out two tom %s 0', n)::bytea), 'hex'), 16), synced, push_due_at_ms
        FROM unnest('{1,4}'::int[]) n JOIN dm_sync_outbox ON primary_message_key = format('two|tom|1000|%s|2', n) ORDER BY n$$,
    $$VALUES (true, false, NULL::bigint), (true, true, NULL)$$, 'a pair without its incoming copy is one blob, by pull only');
SELECT results_eq($$SELECT x FROM (SELECT (owner_login || ' ' || primary_message_key) COLLATE "default" AS x FROM dm_sync_outbox WHERE owner_login = 'tom') y ORDER BY x COLLATE "C"$$,
    $$VALUES ('tom tom|two|3000|901|6'), ('tom tom|two|3000|904|6'), ('tom two|tom|1000|2|1')$$, 'items of what is gone are gone; a tombstone is an item of its author');
SELECT bury(5, 'two', 'tom', 2, n => 905); SELECT bury(5, 'two', 'far', 3, n => 906); SELECT bury(7, 'tom', 'two', until => 10, n => 907, source => 'other');
SELECT results_eq($$SELECT (owner_login || ' ' || primary_message_key) COLLATE "default", synced, push_due_at_ms - now_ms() FROM dm_sync_outbox WHERE primary_message_key ~ '\|90[567]\|' ORDER BY owner_login, primary_message_key$$,
    $$VALUES ('tom tom|two|3000|907|7', true, NULL::bigint), ('tom two|tom|3000|905|5', false, 0), ('two tom|two|3000|907|7', true, NULL), ('two two|far|3000|906|5', false, 30000), ('two two|tom|3000|905|5', false, 0)$$,
    'one item for each holder with a second server; after the first attempt where there is one');
SELECT is((SELECT count(*) FROM dm_sync_outbox WHERE primary_message_key ~ '1000\|[23]\|')::int, 0, 'what is deleted for both is offered to nobody');
SELECT is_empty('SELECT broken()', 'nothing is broken');

-- Somebody who comes to be served here, and has deleted what still waits for him
SELECT wipe();
SELECT send(msg('alice','faye', 1)); SELECT set_user_servers('home', 'faye', '{home}', '{wss://home/ws}');
SELECT bury(6, 'faye', 'alice', 1, by_to => true); SELECT recv(msg('alice','faye', 1));
SELECT results_eq($$SELECT (SELECT count(*) FROM signed_messages WHERE message_type = 1), state, (SELECT last_pts FROM user_event_heads WHERE owner_login = 'faye') FROM dm_delivery_state WHERE outgoing_key = 'alice|faye|1000|1|2'$$,
    $$VALUES (0::bigint, 'delivered' COLLATE "C", 1::bigint)$$, 'the courier copy goes when it would have become his, and the author has his tick');
-- One batch
SELECT results_eq($$SELECT ord, verdict, state FROM apply_tombstones('home', 'p1', '{alice,alice,far,alice}', '{bob,bob,faye,far}', '{alice|bob|1|1,alice|bob|1|1,far|faye|1|1,alice|far|1|1}',
        '{5,5,6,7}', '{1,1,1,1}', '{1,1,1,1}', ARRAY[sha256('a'), sha256('a'), sha256('b'), sha256('c')], '{a,a,b,c}', '{f,f,f,f}', '{9,9,9,9}', '{9,9,9,9}', '{0,0,0,1}',
        '{f,f,f,f}', ARRAY[NULL::text, NULL, NULL, NULL], '{0,0,0,0}', ARRAY[NULL::text, NULL, NULL, NULL]) ORDER BY ord$$,
    $$VALUES (1, 0, 'delivered'), (2, 0, 'delivered'), (3, 1, 'accepted'), (4, 0, 'accepted')$$, 'a batch: repetition, a bad one, a good one');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
