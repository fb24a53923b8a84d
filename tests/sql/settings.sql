-- Settings: the newest wins, what is counted, who is told, pages for clients.
\ir support.psql
SELECT plan(24);
SELECT make_users();
SELECT register_process('p1', 'frontd', 'h', 1); SELECT register_process('p2', 'frontd', 'h', 2);
SELECT create_session('home', 'p2', 'a1', 'alice', '', '', NULL, 'live', 50);

CREATE TYPE setting AS (l text, n text, v text, t bigint, source text);
CREATE FUNCTION setting(l text, n text, v text, t bigint DEFAULT 1000, source text DEFAULT NULL) RETURNS setting LANGUAGE sql AS
$$ SELECT ROW(l, n, v, t, source)::setting $$;
CREATE FUNCTION put(lim integer, VARIADIC s setting[]) RETURNS TABLE (ord integer, verdict integer, pts bigint, elsewhere boolean) LANGUAGE sql AS $$
    SELECT p.* FROM (SELECT array_agg(l) l, array_agg(n) n, array_agg(v) v, array_agg(t) t, array_agg(source) source, array_agg(900000::bigint) f,
                            array_agg(decode(md5(v), 'hex')) sig FROM unnest(s)) x,
         put_settings('home', 'p1', l, n, v, t, sig, source, f, lim) p $$;

SELECT results_eq($$SELECT ord, verdict, pts, elsewhere FROM put(9, setting('alice', 'a', 'one'), setting('far', 'a', 'x'), setting('nobody', 'a', 'x'),
        setting('alice', 'b', 'x', now_ms() + 900001), setting('bob', 'a', 'x', now_ms() + 900000)) ORDER BY ord$$,
    $$VALUES (1, 0, 1::bigint, true), (2, 1, 0, false), (3, 1, 0, false), (4, 3, 0, false), (5, 0, 1, false)$$, 'each its own verdict; the owner''s other sessions are told');
SELECT results_eq($$SELECT kind::int, message_key FROM user_events WHERE owner_login = 'alice'$$, $$VALUES (3, 'a' COLLATE "C")$$, 'an event that names the setting');
SELECT results_eq($$SELECT kind, message_key, value, time_ms, blob FROM events_since('{alice}', '{0}', 9, 1000)$$,
    $$VALUES (3, 'a', 'one', 1000::bigint, decode(md5('one'), 'hex'))$$, 'and is read with the setting as it is now');
SELECT results_eq($$SELECT verdict, pts FROM put(9, setting('alice', 'a', 'old', 999)) UNION ALL SELECT verdict, pts FROM put(9, setting('alice', 'a', 'one'))$$,
    $$VALUES (0, 0::bigint), (0, 0)$$, 'an older one and a repeat are acknowledged and change nothing');
SELECT put(9, setting('alice', 'a', 'on'));
SELECT is((SELECT value FROM user_settings WHERE login = 'alice'), 'one', 'of equal times the larger value stays');
SELECT put(9, setting('alice', 'a', 'onf'));
SELECT is((SELECT value FROM user_settings WHERE login = 'alice'), 'onf', 'also if it comes second');
SELECT put(9, setting('alice', 'u', 'Z', 1), setting('alice', 'u', 'é', 1), setting('alice', 'u', 'a', 1));
SELECT is((SELECT value FROM user_settings WHERE login = 'alice' AND name = 'u'), 'é', 'by bytes, within one batch too');
SELECT results_eq($$SELECT pts FROM put(9, setting('alice', 'c', '1', 1), setting('alice', 'c', '3', 3), setting('alice', 'c', '2', 2)) ORDER BY ord$$,
    $$VALUES (0::bigint), (4), (0)$$, 'one event, for the winner');
SELECT results_eq($$SELECT kind, value FROM events_since('{alice}', '{0}', 9, 1)$$, $$VALUES (3, 'onf')$$, 'pages of events count the bytes of values');

-- Deleting, and the limit
SELECT put(9, setting('alice', 'c', '', 9));
SELECT results_eq($$SELECT value, time_ms FROM user_settings WHERE name = 'c'$$, $$VALUES ('' COLLATE "C", 9::bigint)$$, 'deleted: kept with an empty value');
SELECT put(9, setting('alice', 'c', 'late', 8));
SELECT is((SELECT value FROM user_settings WHERE name = 'c'), '', 'what is older does not bring it back');
SELECT results_eq($$SELECT verdict FROM put(3, setting('alice', 'd', 'x'), setting('alice', 'e', 'x'), setting('bob', 'z', 'x'), setting('alice', 'a', 'new', 2000), setting('alice', 'f', '')) ORDER BY ord$$,
    $$VALUES (0), (4), (0), (0), (0)$$, 'limit: a, u and d make three; changes and deletions are not counted');
SELECT results_eq($$SELECT verdict FROM put(3, setting('alice', 'c', 'again', 99)) UNION ALL SELECT verdict FROM put(3, setting('alice', 'd', '', 1001))
    UNION ALL SELECT verdict FROM put(3, setting('alice', 'c', 'again', 99))$$, $$VALUES (4), (0), (0)$$, 'one that comes back is counted, one that goes makes room');
SELECT results_eq($$SELECT verdict FROM put(0, setting('tom', 'x', 'v', 1, 'other'), setting('tom', 'y', 'v', now_ms() + 86400000, 'other'), setting('tom', 'z', 'v', now_ms() + 86400001, 'other')) ORDER BY ord$$,
    $$VALUES (0), (0), (3)$$, 'servers are not bound by the rules for clients');

-- Synced or not
SELECT put(9, setting('two', 'mine', 'v'), setting('two', 'theirs', 'v', 1000, 'other'), setting('two', 'x', 'v', 1000, 'x'));
SELECT results_eq($$SELECT login, name, synced FROM user_settings WHERE login IN ('two', 'bob') ORDER BY 1, 2$$,
    $$VALUES ('bob' COLLATE "C", 'a' COLLATE "C", true), ('bob', 'z', true), ('two', 'mine', false), ('two', 'theirs', true), ('two', 'x', false)$$,
    'unsynced unless it came from the second server, or there is none');
SELECT put(9, setting('two', 'mine', 'u', 1000, 'other'), setting('two', 'x', 'v', 999, 'other'));
SELECT is((SELECT count(*) FROM user_settings WHERE login = 'two' AND NOT synced)::int, 2, 'an older one from the second server proves nothing');
SELECT put(9, setting('two', 'mine', 'v', 1000, 'other'));
SELECT is((SELECT synced FROM user_settings WHERE login = 'two' AND name = 'mine'), true, 'the same one does');
SELECT put(9, setting('two', 'theirs', 'w', 1001));
SELECT is((SELECT synced FROM user_settings WHERE login = 'two' AND name = 'theirs'), false, 'a change unsyncs');

-- Pages
SELECT results_eq($$SELECT name, value, more FROM get_settings('alice', NULL, '', 2, 1000)$$, $$VALUES ('a', 'new', true), ('c', 'again', true)$$, 'a page by name');
SELECT results_eq($$SELECT name, more FROM get_settings('alice', NULL, 'c', 9, 1000)$$, $$VALUES ('d', true), ('f', true), ('u', false)$$, 'the rest, what was deleted too');
SELECT results_eq($$SELECT name, more FROM get_settings('alice', '{u,a,none}', '', 9, 4)$$, $$VALUES ('a', true)$$, 'some names; bounded by bytes');
SELECT results_eq($$SELECT name, more FROM get_settings('alice', '{u,a}', '', 9, 1)$$, $$VALUES ('a', true)$$, 'but at least one');
SELECT is_empty($$SELECT * FROM get_settings('alice', '{}', '', 9, 1) UNION ALL SELECT * FROM get_settings('alice', NULL, 'z', 9, 1)$$, 'nothing');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
