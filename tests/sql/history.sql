-- What comes in pages of the second server: events, delivery rows by age, outbox rows.
\ir support.psql
SELECT plan(49);
SELECT make_users();
SELECT add_user('home', 'mia', 'key', NULL, NULL, 'local', '{home,mias}', '{wss://home/ws,wss://mias/ws}');
SELECT register_process('p1', 'frontd', 'h', 1); SELECT register_process('p2', 'frontd', 'h', 2);
SELECT create_session('home', 'p2', 't1', 'two', '', '', NULL, 'pts', 50);

-- A pair of a page of two's second server; no_in: without the incoming copy.
CREATE FUNCTION hist(m msg, proof boolean DEFAULT false, no_in boolean DEFAULT false)
RETURNS TABLE (verdict integer, from_pts bigint, to_pts bigint, ws_sessions bigint, attempt boolean) LANGUAGE sql AS $$
    SELECT a.verdict, a.from_pts, a.to_pts, a.ws_sessions, a.attempt
    FROM accept_pairs('home', 'p1', ARRAY[m.f], ARRAY[m.t], ARRAY[format('%s|%s|%s|%s', m.f, m.t, m.time_ms, m.n)], ARRAY[1], ARRAY[m.time_ms], ARRAY[m.n],
        ARRAY[m.rev, m.rev], '{0,0}', ARRAY[CASE WHEN NOT no_in THEN sha256(m.i::bytea) END, sha256(m.o::bytea)],
        ARRAY[CASE WHEN NOT no_in THEN m.i::bytea END, m.o::bytea], '{t}', ARRAY[coalesce(m.source, 'other')], '{0}', ARRAY[NULL::text], '{}', '{}', '{}', true, ARRAY[proof]) a $$;
CREATE FUNCTION hist_in(m msg) RETURNS TABLE (verdict integer, to_pts bigint, from_pts bigint, ws_sessions bigint) LANGUAGE sql AS $$
    SELECT a.verdict, a.to_pts, a.from_pts, a.ws_sessions
    FROM apply_incoming('home', 'p1', ARRAY[m.f], ARRAY[m.t], ARRAY[format('%s|%s|%s|%s', m.f, m.t, m.time_ms, m.n)], ARRAY[1], ARRAY[m.time_ms], ARRAY[m.n],
        ARRAY[m.rev], '{0}', ARRAY[sha256(m.i::bytea)], ARRAY[m.i::bytea], ARRAY[coalesce(m.source, 'other')], '{}', '{}', '{}', true) a $$;
CREATE FUNCTION hist_bury(type integer, f text, t text, time_ms bigint DEFAULT 3000, proof boolean DEFAULT false, n bigint DEFAULT 900, ref bigint DEFAULT 1)
RETURNS TABLE (verdict integer, from_pts bigint, to_pts bigint) LANGUAGE sql AS $$
    SELECT a.verdict, a.from_pts, a.to_pts FROM (SELECT format('t %s %s %s %s', type, f, t, n)::bytea AS b) b,
        apply_tombstones('home', 'p1', ARRAY[f], ARRAY[t], ARRAY[format('%s|%s|%s|%s', f, t, time_ms, n)], ARRAY[type], ARRAY[time_ms], ARRAY[n], ARRAY[sha256(b)], ARRAY[b],
            '{f}', '{1000}', ARRAY[ref], '{1000}', '{t}', '{other}', '{0}', ARRAY[NULL::text], true, ARRAY[proof]) a $$;
CREATE FUNCTION row_of(key text) RETURNS text LANGUAGE sql AS
$$ SELECT (state, attempt_no, now_ms() - accepted_at_ms, next_attempt_at_ms - now_ms(), lease_owner, delivered_via)::text FROM dm_delivery_state WHERE outgoing_key = key $$;
CREATE FUNCTION told(who text) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(kind || ':' || message_key, ' ' ORDER BY pts) FROM user_events WHERE owner_login = who $$;

-- Old, to somebody served elsewhere
SELECT results_eq($$SELECT * FROM hist(msg('two', 'far', 1))$$, $$VALUES (0, 0::bigint, 0::bigint, 0::bigint, false)$$, 'stored, nobody is told');
SELECT is((SELECT count(*) FROM signed_messages)::int, 2, 'both copies, the incoming one as courier copy');
SELECT is(row_of('two|far|1000|1|2'), NULL, 'no row: nobody is contacted, and nothing turns red');
SELECT is(told('two'), NULL, 'no event');
SELECT is((SELECT history_with FROM user_event_heads WHERE owner_login = 'two'), '{far}'::text[], 'but the conversation is noted');
SELECT results_eq($$SELECT synced, push_due_at_ms FROM dm_sync_outbox$$, $$VALUES (true, NULL::bigint)$$, 'born synced');
SELECT hist(msg('two', 'far', 2), proof => true);
SELECT is(row_of('two|far|1000|2|2'), '(delivered,1,0,,,other)', 'proved: a delivered row');
SELECT read_pair('far', 'two', 3, 1500, by_server => true); SELECT recv(msg('far', 'bob', 77));
SELECT recv(VARIADIC ARRAY[msg('far', 'two', 78)]);
SELECT read_in('far', 'two', 3, 1500); SELECT hist(msg('two', 'far', 3));
SELECT is(row_of('two|far|1000|3|2'), '(delivered,1,0,,,other)', 'a receipt proves it, too');
SELECT hist(msg('two', 'faye', 4));
SELECT results_eq($$SELECT owner_login, pts, elsewhere FROM tell_history('home', 'p1', '{two,far,alice}')$$, $$VALUES ('two', 3::bigint, true)$$, 'one event at the end');
SELECT is(told('two'), '1:far|two|1000|78|1 1:far|two|2000|500|3 4:far,faye', 'with all conversations of the page');
SELECT is_empty($$SELECT * FROM tell_history('home', 'p1', '{two}')$$, 'once');
SELECT hist(msg('two', 'far', 1)), hist(msg('two', 'far', 2));
SELECT is((SELECT history_with FROM user_event_heads WHERE owner_login = 'two'), NULL, 'repeats change nothing and are not told');
SELECT results_eq($$SELECT kind, message_key, base_key IS NOT NULL, message_type FROM events_since('{two}', '{2}', 9, 1000)$$, $$VALUES (4, 'far,faye', true, NULL::integer)$$, 'read like any event');
SELECT is((SELECT last_message_key FROM conversations WHERE owner_login = 'two' AND with_login = 'faye'), 'two|faye|1000|4|2', 'conversations are kept in step');

-- Fresh
SELECT results_eq($$SELECT verdict, from_pts, attempt FROM hist(msg('two', 'far', 10, time_ms => now_ms() - 3599999))$$, $$VALUES (0, 0::bigint, false)$$, 'no event for the author either');
SELECT is(row_of('two|far|' || now_ms() - 3599999 || '|10|2'), '(accepted,4,3599999,0,,)', 'younger than an hour: an attempt now, the schedule where it stands');
SELECT hist(msg('two', 'far', 11, time_ms => now_ms() - 3600000), proof => false);
SELECT is(row_of('two|far|' || now_ms() - 3600000 || '|11|2'), NULL, 'an hour: history');
SELECT hist(msg('two', 'far', 12, time_ms => now_ms() - 29999)), hist(msg('two', 'far', 13, time_ms => now_ms() - 300000)), hist(msg('two', 'far', 14, time_ms => now_ms() + 5000));
SELECT results_eq($$SELECT attempt_no::int, now_ms() - accepted_at_ms, next_attempt_at_ms - now_ms() FROM dm_delivery_state WHERE outgoing_key ~ '\|1[234]\|' ORDER BY outgoing_key$$,
    $$VALUES (3, 300000::bigint, 0::bigint), (1, 29999, 0), (1, 0, 0)$$, 'by age; a clock that is ahead begins now');
SELECT hist(msg('two', 'far', 15, now_ms() - 1000));
SELECT is(row_of('two|far|1000|15|2'), '(accepted,1,1000,0,,)', 'a fresh edit of an old message is fresh');

-- Rows that are there already
SELECT send(msg('two', 'far', 20), msg('two', 'far', 21), msg('two', 'far', 22), msg('two', 'far', 23));
SELECT finish('two|far|1000|23|2', 1, 1, 'x');
SELECT hist(msg('two', 'far', 20)), hist(msg('two', 'far', 21), proof => true);
SELECT is(row_of('two|far|1000|20|2'), '(accepted,1,0,30000,p1,)', 'a repeat leaves a row that waits alone');
SELECT is(row_of('two|far|1000|21|2'), '(delivered,1,0,,,other)', 'unless it is known to be delivered');
SELECT is((SELECT message_key FROM user_events WHERE owner_login = 'two' AND kind = 2 ORDER BY pts DESC LIMIT 1), 'two|far|1000|21|2', 'then its author is told');
SELECT hist(msg('two', 'far', 22, 5)), hist(msg('two', 'far', 23, 5), proof => true);
SELECT is(row_of('two|far|1000|22|2'), NULL, 'the row of an older revision goes');
SELECT is((SELECT (state, revision_time_ms)::text FROM dm_delivery_state WHERE outgoing_key = 'two|far|1000|23|2'), '(delivered,5)', 'or is about the new one');
SELECT hist(msg('two', 'far', 22, 4), proof => true);
SELECT is(row_of('two|far|1000|22|2'), NULL, 'a proof of a revision that is not the stored one proves nothing');

-- Without incoming copy
SELECT results_eq($$SELECT verdict FROM hist(msg('two', 'far', 30, time_ms => now_ms() - 5), no_in => true)$$, $$VALUES (0)$$, 'a pair of which the recipient deleted their copy');
SELECT is((SELECT array_agg(right(message_key, 2)) FROM signed_messages WHERE nonce = 30), '{|2}', 'the author''s copy is stored');
SELECT is(row_of('two|far|' || now_ms() - 5 || '|30|2'), NULL, 'there is nothing to deliver');
SELECT hist(msg('two', 'far', 31), proof => true, no_in => true);
SELECT is(row_of('two|far|1000|31|2'), '(delivered,1,0,,,other)', 'but it may be known to be delivered');
SELECT results_eq($$SELECT synced FROM dm_sync_outbox WHERE primary_message_key LIKE '%|3_|2'$$, $$VALUES (true), (true)$$, 'and is not offered back');

-- To somebody served here
SELECT tell_history('home', 'p1', NULL);
SELECT results_eq($$SELECT verdict, to_pts > 0 FROM hist(msg('two', 'bob', 40)) UNION ALL SELECT verdict, to_pts > 0 FROM hist(msg('two', 'bob', 41, time_ms => now_ms() - 9))$$,
    $$VALUES (0, false), (0, true)$$, 'fresh: a delivery for the recipient; old: history');
SELECT is(row_of('two|bob|1000|40|2'), '(delivered,1,0,,,home)', 'delivered, whatever its age');
SELECT results_eq($$SELECT owner_login FROM tell_history('home', 'p1', NULL)$$, $$VALUES ('bob'), ('two')$$, 'both hear of the history');
SELECT is((SELECT unread_count FROM conversations WHERE owner_login = 'bob' AND with_login = 'two'), 2, 'unread');
SELECT hist(msg('two', 'mia', 42));
SELECT results_eq($$SELECT owner_login, synced FROM dm_sync_outbox WHERE primary_message_key LIKE '%|42|%' ORDER BY 1$$, $$VALUES ('mia' COLLATE "C", false), ('two', true)$$, 'the recipient''s copy has an item of its own');

-- Incoming copies
SELECT tell_history('home', 'p1', NULL);
SELECT results_eq($$SELECT verdict, to_pts > 0, ws_sessions FROM hist_in(msg('far', 'two', 50)) UNION ALL SELECT verdict, to_pts > 0, ws_sessions FROM hist_in(msg('far', 'two', 51, time_ms => now_ms() - 9))$$,
    $$VALUES (0, false, 0::bigint), (0, true, 1)$$, 'old: history; fresh: a delivery');
SELECT is((SELECT history_with FROM user_event_heads WHERE owner_login = 'two'), '{far}'::text[], 'noted');
SELECT results_eq($$SELECT synced FROM dm_sync_outbox WHERE primary_message_key LIKE '%|5_|1'$$, $$VALUES (true), (true)$$, 'synced');
SELECT results_eq($$SELECT verdict FROM hist_in(msg('far', 'two', 52, time_ms => now_ms() + 86400001))$$, $$VALUES (3)$$, 'times far ahead are refused here, too');

-- Tombstones
SELECT tell_history('home', 'p1', NULL);
SELECT results_eq($$SELECT * FROM hist_bury(5, 'two', 'far')$$, $$VALUES (0, 0::bigint, 0::bigint)$$, 'a tombstone of history');
SELECT is(row_of('two|far|3000|900|5'), NULL, 'is delivered to nobody');
SELECT is((SELECT count(*) FROM signed_messages WHERE base_key = 'two|far|1000|1')::int, 0, 'but has its effect');
SELECT is((SELECT history_with FROM user_event_heads WHERE owner_login = 'two'), '{far}'::text[], 'and is told like history');
SELECT hist_bury(5, 'two', 'far', 3001, true, 901, 2), hist_bury(7, 'two', 'far', now_ms() - 40000, false, 902);
SELECT is(row_of('two|far|3001|901|5'), '(delivered,1,0,,,other)', 'proved');
SELECT is(row_of('two|far|' || now_ms() - 40000 || '|902|7'), '(accepted,2,40000,0,,)', 'fresh');

-- Notes about what was refused
SELECT note_sync_rejects('two', 'other', '{a,b,a}', '{X,Y,Z}'); SELECT move_clock(5); SELECT note_sync_rejects('two', 'other', '{b}', '{W}');
SELECT results_eq($$SELECT sync_id, reason, last_seen_ms - first_seen_ms, count FROM dm_sync_rejects ORDER BY 1$$,
    $$VALUES ('a' COLLATE "C", 'Z'::text, 0::bigint, 1::bigint), ('b', 'W', 5, 2)$$, 'refused items are counted');
-- What is stored depends on the set of containers alone: sent to tom, and pulled for two in another
-- order, with repetitions. A partner of its own for each round.
CREATE FUNCTION hist_read(reader text, author text, ref bigint, read_at bigint, n bigint) RETURNS integer LANGUAGE sql AS $$
    SELECT a.verdict FROM
        accept_pairs('home', 'p1', ARRAY[reader], ARRAY[author], ARRAY[format('%s|%s|2000|%s', reader, author, n)], ARRAY[3], '{2000}', ARRAY[n], '{0,0}', '{0,0}',
            ARRAY[sha256('r'), sha256('s')], ARRAY['r'::bytea, 's'], '{t}', '{other}', '{0}', ARRAY[NULL::text],
            '{1000,1000}', ARRAY[ref, ref], ARRAY[read_at, read_at], true) a $$;
SELECT setseed(0.5);
CREATE TEMP TABLE steps AS
SELECT r, i, floor(random() * 10)::integer AS kind, 1 + floor(random() * 4)::bigint AS n, floor(random() * 3)::bigint AS rev,
       floor(random() * 2)::integer AS v, 1000 + floor(random() * 3)::bigint AS at, random() AS place
FROM generate_series(1, 80) r, generate_series(1, 14) i;
SELECT count(add_user('home', 'p' || r, 'key', NULL, NULL, 'partner', '{x}', '{wss://x/ws}')) FROM generate_series(1, 80) r;
CREATE FUNCTION random_round(round integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    partner text := 'p' || round; step record; m msg;
BEGIN
    FOR step IN SELECT 'tom' AS who, s.* FROM steps s WHERE r = round
        UNION ALL (SELECT 'two', x.* FROM (SELECT * FROM steps UNION ALL SELECT * FROM steps WHERE place < 0.4) x WHERE r = round ORDER BY random()) LOOP
        CASE
        WHEN step.kind < 4 THEN
            m := msg(step.who, partner, step.n, step.rev, format('i%s%s', step.rev, step.v), format('o%s%s', step.rev, step.v), 'other');
            IF step.who = 'tom' THEN PERFORM send(m); ELSE PERFORM hist(m, step.v = 1); END IF;
        WHEN step.kind < 6 THEN
            m := msg(partner, step.who, step.n, step.rev, format('i%s%s', step.rev, step.v), NULL, 'other');
            IF step.who = 'tom' THEN PERFORM recv(m); ELSE PERFORM hist_in(m); END IF;
        WHEN step.kind = 6 THEN
            IF step.who = 'tom' THEN PERFORM read_pair('tom', partner, step.n, step.at, 500 + step.i, source => 'other');
            ELSE PERFORM hist_read('two', partner, step.n, step.at, 500 + step.i); END IF;
        WHEN step.kind = 7 THEN
            PERFORM read_in(partner, step.who, step.n, step.at, 500 + step.i);
        WHEN step.kind = 8 AND step.v = 0 THEN
            IF step.who = 'tom' THEN PERFORM bury(5, 'tom', partner, step.n, n => 900 + step.i, source => 'other');
            ELSE PERFORM hist_bury(5, 'two', partner, n => 900 + step.i, ref => step.n); END IF;
        ELSE
            IF step.who = 'tom' THEN PERFORM bury(6, 'tom', partner, step.n, n => 900 + step.i, source => 'other');
            ELSE PERFORM hist_bury(6, 'two', partner, n => 900 + step.i, ref => step.n); END IF;
        END CASE;
    END LOOP;
    PERFORM tell_history('home', 'p1', NULL);
END $$;
CREATE VIEW copies_of AS SELECT m.message_key ~ 'tom' AS is_tom, replace(m.owner_login, 'tom', 'two') || ' ' || replace(m.message_key, 'tom', 'two') AS k, m.revision_time_ms, m.read_at_ms, m.courier,
    CASE WHEN m.message_type < 3 THEN m.digest END AS digest FROM signed_messages m WHERE m.message_key ~ '(tom|two)' AND m.message_key ~ 'p[0-9]+';
CREATE VIEW talks_of AS SELECT owner_login = 'tom' AS is_tom, with_login, replace(last_message_key, 'tom', 'two') AS last, last_time_ms, unread_count, last_read_at_ms
    FROM conversations WHERE owner_login IN ('tom', 'two') AND with_login ~ '^p[0-9]+$' AND last_message_key IS NOT NULL;
SELECT format('SELECT random_round(%s)', r) FROM generate_series(1, 80) r \gexec
SELECT results_eq('SELECT k, revision_time_ms, read_at_ms, courier, digest FROM copies_of WHERE is_tom ORDER BY 1', 'SELECT k, revision_time_ms, read_at_ms, courier, digest FROM copies_of WHERE NOT is_tom ORDER BY 1', 'pulled in any order, the same is stored');
SELECT results_eq('SELECT with_login, last, last_time_ms, unread_count, last_read_at_ms FROM talks_of WHERE is_tom ORDER BY 1', 'SELECT with_login, last, last_time_ms, unread_count, last_read_at_ms FROM talks_of WHERE NOT is_tom ORDER BY 1', 'and the same shown');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
