-- The serving half of the pull: pages, acknowledgements, who may ask, marking everything unsynced.
\ir support.psql
SELECT plan(47);
SELECT make_users();
CREATE FUNCTION page(lim integer DEFAULT 500, bytes bigint DEFAULT 3000000, ack text[] DEFAULT '{}', after bigint DEFAULT 0, key text DEFAULT '',
    owner text DEFAULT 'two', caller text DEFAULT 'other', trust boolean DEFAULT true)
RETURNS TABLE (verdict integer, more boolean, sync_id text, primary_message_key text, stored_at_ms bigint, blob1 bytea, blob2 bytea) LANGUAGE sql AS
$$ SELECT * FROM sync_page('home', caller, trust, owner, after, key, lim, bytes, ack) $$;
CREATE FUNCTION settings_page(lim integer DEFAULT 500, bytes bigint DEFAULT 3000000, ack text[] DEFAULT '{}', after bigint DEFAULT 0, key text DEFAULT '',
    owner text DEFAULT 'two', caller text DEFAULT 'other')
RETURNS TABLE (verdict integer, more boolean, sync_id text, name text, value text, time_ms bigint, stored_at_ms bigint, signature bytea) LANGUAGE sql AS
$$ SELECT * FROM sync_settings_page('home', caller, true, owner, after, key, lim, bytes, ack) $$;
CREATE FUNCTION put(l text, n text, v text, t bigint DEFAULT 1000) RETURNS bigint LANGUAGE sql AS
$$ SELECT pts FROM put_settings('home', 'p1', ARRAY[l], ARRAY[n], ARRAY[v], ARRAY[t], ARRAY['sig'::bytea], ARRAY[NULL::text], '{900000}', 1000) $$;

SELECT results_eq('SELECT * FROM page()', $$VALUES (0, false, NULL::text, NULL::text, NULL::bigint, NULL::bytea, NULL::bytea)$$, 'nothing to fetch');
SELECT send(msg('two', 'bob', 1)); SELECT move_clock(1);
SELECT recv(msg('far', 'two', 2)); SELECT move_clock(1);
SELECT send(msg('two', 'far', 3, i => 'I', o => 'O')); SELECT send(msg('two', 'far', 4));
SELECT bury(6, 'two', 'far', 99);
SELECT results_eq('SELECT verdict, more, primary_message_key, stored_at_ms - now_ms(), blob1, blob2 FROM page()',
    $$VALUES (0, true, 'two|bob|1000|1|2', -2::bigint, 'in two bob 1 0'::bytea, 'out two bob 1 0'::bytea), (0, true, 'far|two|1000|2|1', -1, NULL, 'in far two 2 0'),
      (0, true, 'two|far|1000|3|2', 0, 'I', 'O'), (0, true, 'two|far|1000|4|2', 0, 'in two far 4 0', 'out two far 4 0'),
      (0, false, 'two|far|3000|900|6', 0, NULL, 't 6 two far 900 99 f 1000')$$, 'pairs with both blobs, incoming first; in order of time, then key');
SELECT is((SELECT count(*) FROM page() p JOIN dm_sync_outbox o USING (sync_id))::int, 5, 'sync ids as they are kept');
SELECT results_eq('SELECT more, primary_message_key FROM page(2)', $$VALUES (true, 'two|bob|1000|1|2'), (true, 'far|two|1000|2|1')$$, 'limit');
SELECT results_eq('SELECT more, primary_message_key FROM page(4)', $$SELECT true, primary_message_key FROM page() LIMIT 4$$, 'one less than all');
SELECT results_eq('SELECT more, primary_message_key FROM page(5)', $$SELECT more, primary_message_key FROM page()$$, 'exactly all: no more');
SELECT results_eq($$SELECT more, primary_message_key FROM page(after => now_ms(), key => 'two|far|1000|3|2')$$, $$VALUES (true, 'two|far|1000|4|2'), (false, 'two|far|3000|900|6')$$, 'after a cursor of the same time');
SELECT results_eq($$SELECT primary_message_key FROM page(after => now_ms())$$, $$SELECT primary_message_key FROM page() OFFSET 2$$, 'or of a time alone');
SELECT results_eq('SELECT more, primary_message_key FROM page(bytes => 1)', $$VALUES (true, 'two|bob|1000|1|2')$$, 'at least one item, however large');
SELECT results_eq('SELECT count(*)::int, bool_or(more) FROM page(bytes => 29)', 'VALUES (1, true)', 'bytes of both blobs count');
SELECT results_eq('SELECT count(*)::int FROM page(bytes => 43) UNION ALL SELECT count(*)::int FROM page(bytes => 42)', 'VALUES (2), (1)', 'up to the bound and not beyond');

-- Acknowledgements
CREATE TEMP TABLE ids AS SELECT sync_id, primary_message_key FROM page();
SELECT results_eq($$SELECT primary_message_key FROM page(1, ack => ARRAY(SELECT sync_id FROM ids LIMIT 2) || ARRAY['nonsense', '', 'two|far|1000|3|2:0:0:0000000000000000'])$$,
    $$VALUES ('two|far|1000|3|2')$$, 'acknowledged items are passed over at once; what names nothing is ignored');
SELECT results_eq('SELECT synced, push_due_at_ms IS NULL, count(*)::int FROM dm_sync_outbox WHERE owner_login = ''two'' GROUP BY 1, 2 ORDER BY 1', 'VALUES (false, false, 3), (true, true, 2)', 'synced, and no push is due');
CREATE TEMP TABLE before AS SELECT * FROM dm_sync_outbox;
SELECT page(ack => ARRAY(SELECT sync_id FROM ids LIMIT 2));
SELECT results_eq('SELECT * FROM dm_sync_outbox ORDER BY 1, 2', 'SELECT * FROM before ORDER BY 1, 2', 'a second time changes nothing');
SELECT send(msg('two', 'far', 3, 7));
SELECT page(ack => ARRAY(SELECT sync_id FROM ids));
SELECT results_eq('SELECT primary_message_key, blob2 FROM page()', $$VALUES ('two|far|1000|3|2', 'out two far 3 7'::bytea)$$, 'an old sync id does not acknowledge what changed since');
SELECT page(owner => 'tom', ack => ARRAY(SELECT sync_id FROM page()));
SELECT is((SELECT count(*) FROM page() WHERE sync_id IS NOT NULL)::int, 1, 'nor does another owner''s request');

-- A pair whose incoming copy its recipient deleted
SELECT send(msg('two', 'bob', 8)); SELECT bury(6, 'bob', 'two', 8, true);
SELECT results_eq($$SELECT blob1, blob2, sync_id FROM page() WHERE primary_message_key = 'two|bob|1000|8|2'$$,
    $$VALUES (NULL::bytea, 'out two bob 8 0'::bytea, 'two|bob|1000|8|2:0:0:' || left(encode(sha256('out two bob 8 0'), 'hex'), 16))$$, 'carries one blob');
SELECT read_pair('two', 'far', 2, 1500);
SELECT results_eq($$SELECT right(primary_message_key, 2), blob1 IS NULL, blob2 IS NULL FROM page() WHERE primary_message_key LIKE '%|500|_'$$, $$VALUES ('|4', false, false)$$, 'receipts are pairs, too');
SELECT send(msg('two', 'two', 10));
SELECT results_eq($$SELECT primary_message_key, blob1, blob2 FROM page() WHERE primary_message_key LIKE 'two|two%' ORDER BY 1$$,
    $$VALUES ('two|two|1000|10|1', NULL::bytea, 'in two two 10 0'::bytea), ('two|two|1000|10|2', 'in two two 10 0', 'out two two 10 0')$$, 'a note to self is two items');

-- Who may ask
SELECT is((SELECT verdict FROM page(caller => 'x')), 2, 'not a server that does not serve the owner');
SELECT is((SELECT verdict FROM page(caller => 'home')), 2, 'nor we ourselves');
SELECT is((SELECT verdict FROM page(owner => 'far', caller => 'x')), 1, 'nothing for owners of others');
SELECT is((SELECT verdict FROM page(owner => 'nobody', caller => 'x')), 1, 'or whom nobody knows');
SELECT is((SELECT verdict FROM page(owner => 'alice', caller => 'x')), 2, 'an owner without second server');
SELECT is((SELECT verdict FROM page(owner => 'alice', caller => NULL)), 2, 'has nobody to be pulled by');
SELECT is((SELECT max(verdict) FROM page(caller => NULL)), 0, 'a caller without a name is trusted');
SELECT is((SELECT verdict FROM page(caller => NULL, trust => false)), 2, 'where the configuration allows it');
SELECT add_server('other', 'wss://other/ws', 'KEY');
SELECT is((SELECT verdict FROM page(caller => NULL)), 2, 'and while no key of the second server is known');
SELECT is((SELECT max(verdict) FROM page()), 0, 'by name it still may');
SELECT page(caller => 'x', ack => ARRAY(SELECT sync_id FROM page()));
SELECT cmp_ok((SELECT count(*) FROM page() WHERE sync_id IS NOT NULL), '>', 3::bigint, 'a caller who may not pull acknowledges nothing');
-- The owner moved
SELECT set_user_servers('home', 'two', '{other,new}', '{wss://other/ws,wss://new/ws}');
SELECT is((SELECT max(verdict) FROM page(caller => 'new')), 0, 'a former server lets the current ones fetch what is left');
SELECT page(caller => 'new', ack => ARRAY(SELECT sync_id FROM page(caller => 'new')));
SELECT is((SELECT verdict FROM page(caller => 'new')), 1, 'until nothing is');
SELECT set_user_servers('home', 'two', '{home,other}', '{wss://home/ws,wss://other/ws}');

-- Settings
SELECT put('two', 'a', 'one'), put('two', 'b', ''); SELECT move_clock(1); SELECT put('two', 'c', 'three');
SELECT results_eq('SELECT verdict, more, name, value, time_ms, stored_at_ms - now_ms(), signature FROM settings_page()',
    $$VALUES (0, true, 'a', 'one', 1000::bigint, -1::bigint, 'sig'::bytea), (0, true, 'b', '', 1000, -1, 'sig'), (0, false, 'c', 'three', 1000, 0, 'sig')$$, 'a page of settings, deletions too');
SELECT results_eq('SELECT sync_id FROM settings_page(1)', $$SELECT 'a:1000:' || left(encode(sha256('one'), 'hex'), 16)$$, 'sync id');
SELECT results_eq('SELECT more, name FROM settings_page(bytes => 3)', $$VALUES (true, 'a'), (true, 'b')$$, 'bytes of values');
SELECT results_eq($$SELECT name FROM settings_page(after => now_ms() - 1, key => 'a')$$, $$VALUES ('b'), ('c')$$, 'cursor');
SELECT put('two', 'a', 'two', 2000);
SELECT results_eq($$SELECT name FROM settings_page(ack => ARRAY['a:1000:7692c3ad3540bb80', 'b:1000:' || left(encode(sha256(''), 'hex'), 16), 'x', 'c'])$$,
    $$VALUES ('a'), ('c')$$, 'only what is as it was named is acknowledged');
SELECT is((SELECT verdict FROM settings_page(caller => 'x')), 2, 'the same callers');
SELECT is((SELECT verdict FROM settings_page(owner => 'far', caller => 'x')), 1, 'and owners');

-- Everything again
SELECT results_eq($$SELECT settings, dms FROM mark_unsynced('home', 'two')$$, $$SELECT 3::bigint, count(*) FROM signed_messages WHERE owner_login = 'two'$$, 'how much will be offered');
SELECT is((SELECT count(*) FROM user_settings WHERE synced)::int, 0, 'settings are marked');
SELECT results_eq($$SELECT mark_from FROM sync_leases WHERE owner_login = 'two' AND server_login = 'other'$$, $$VALUES ('' COLLATE "C")$$, 'messages by housekeeping, from the first');
SELECT results_eq($$SELECT settings, dms FROM mark_unsynced('home', 'alice') UNION ALL SELECT settings, dms FROM mark_unsynced('home', 'far')$$, $$VALUES (0::bigint, 0::bigint), (0, 0)$$, 'nothing for whom there is no second server');
UPDATE sync_leases SET mark_from = 'x'; UPDATE user_settings SET synced = true;
SELECT results_eq($$SELECT users, settings, last FROM mark_all_unsynced('home', '', 1)$$, $$VALUES (1::bigint, 0::bigint, 'tom'::text)$$, 'everybody, some at a time');
SELECT results_eq($$SELECT users, settings, last FROM mark_all_unsynced('home')$$, $$VALUES (2::bigint, 3::bigint, NULL::text)$$, 'or at once');
SELECT set_user_servers('home', 'alice', '{home,third}', '{wss://home/ws,wss://third/ws}'); SELECT put('alice', 'a', 'one');
UPDATE user_settings SET synced = true;
SELECT set_user_servers('home', 'alice', '{home,fourth}', '{wss://home/ws,wss://fourth/ws}');
SELECT is((SELECT synced FROM user_settings WHERE login = 'alice'), false, 'a new second server gets all settings');
INSERT INTO dm_sync_rejects VALUES ('tom', 'id', 'other', 'BAD_SIGNATURE', 1, 1, 1);
SELECT results_eq($$SELECT owner_login, peer, messages > 0, settings, filling, rejected FROM v_sync_backlog ORDER BY 1$$,
    $$VALUES ('alice' COLLATE "C", 'fourth' COLLATE "C", false, 1::bigint, true, 0::bigint), ('tom', 'other', false, 0, true, 1), ('two', 'other', false, 0, true, 0)$$, 'v_sync_backlog');
SELECT * FROM finish();
