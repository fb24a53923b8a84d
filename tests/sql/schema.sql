-- What newcomers and other parts rely on: comments everywhere, the clock that tests can replace,
-- planner settings on every function of the write path, the views.
\ir support.psql
SELECT plan(17);
SELECT make_users();

SELECT is_empty($$SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v')
    AND c.relname NOT IN (SELECT x.relname FROM pg_class x JOIN pg_depend d ON d.objid = x.oid AND d.deptype = 'e')
    AND c.relname NOT IN ('schema_migrations', 'before', 'tap_funky', 'pg_all_foreign_keys')
    AND obj_description(c.oid) IS NULL$$, 'every table and view has a comment');
SELECT is_empty($$SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v')
    AND c.relname NOT IN (SELECT x.relname FROM pg_class x JOIN pg_depend d ON d.objid = x.oid AND d.deptype = 'e')
    AND c.relname NOT IN ('schema_migrations') AND col_description(c.oid, a.attnum) IS NULL$$, 'and every column');
SELECT is_empty($$SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
    AND p.proname NOT IN ('move_clock', 'make_users', 'msg', 'send', 'recv', 'finish', 'broken', 'read_pair', 'read_in', 'bury')
    AND obj_description(p.oid) IS NULL$$, 'and every function');
SELECT is_empty($$SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    JOIN pg_index i ON i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
    WHERE c.relnamespace = 'public'::regnamespace AND a.atttypid = 'text'::regtype AND a.attcollation <> 'pg_catalog."C"'::regcollation
    AND c.relname NOT IN ('schema_migrations')$$, 'keys and cursors compare by bytes');
SELECT is_empty($$SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname NOT IN ('lock_heads', 'take_heads') AND prosrc ~ '(lock|take)_heads\('
    AND (proconfig @> '{plan_cache_mode=force_generic_plan,enable_hashjoin=off,enable_mergejoin=off,enable_seqscan=off,enable_memoize=off,enable_material=off}') IS NOT TRUE$$,
    'every caller of lock_heads plans alike');
SELECT is((SELECT attstorage FROM pg_attribute WHERE attrelid = 'signed_messages'::regclass AND attname = 'blob'), 'e', 'blobs are not compressed');

-- The clock
SELECT function_returns('public', 'now_ms', '{}'::name[], 'bigint');
SELECT volatility_is('public', 'now_ms', '{}'::name[], 'stable');
PREPARE clock AS SELECT now_ms(), due_in_words(now_ms() + 24000);
SELECT count(*) FROM generate_series(1, 6) i, LATERAL (SELECT now_ms()) x; EXECUTE clock;
SELECT move_clock(5);
SELECT results_eq('clock', $$VALUES (1700000000005, 'in 24 s')$$, 'a clock that moves is seen by prepared statements');
CREATE EXTENSION IF NOT EXISTS dblink;
SELECT dblink_connect('c', 'dbname=' || current_database() || ' host=' || split_part(current_setting('unix_socket_directories'), ',', 1) || ' port=' || current_setting('port') || ' user=' || current_user) IS NOT NULL;
SELECT dblink_exec('c', 'SET test.now = 7; PREPARE p AS SELECT now_ms(), live_processes(now_ms())');
SELECT * FROM dblink('c', 'EXECUTE p') AS (a bigint, b text[]);
CREATE OR REPLACE FUNCTION public.now_ms() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT 8::bigint $$;
SELECT results_eq($$SELECT a FROM dblink('c', 'EXECUTE p') AS (a bigint, b text[])$$, $$VALUES (8::bigint)$$, 'and replacing it by sessions connected before');
CREATE OR REPLACE FUNCTION public.now_ms() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT current_setting('test.now')::bigint $$;

-- Views
SELECT register_process('p1', 'frontd', 'h', 1);
SELECT create_session('home', 'p1', 'sessionid', 'alice', '', '', NULL, 'pts', 2);
SELECT send(msg('alice','far', 1), msg('alice','bob', 2), msg('alice','far', 3));
SELECT finish('alice|far|1000|3|2', 1, 2, error => 'x: refused');
SELECT move_clock(6000);
SELECT is((SELECT array_agg((from_login, to_login, state, attempt, next_attempt, lease, last_error, delivered_via, accepted_ago)::text
               ORDER BY outgoing_key) FROM v_delivery),
    ARRAY['(alice,bob,delivered,1,never,"","",home,"6 s")', '(alice,far,accepted,1,"in 24 s","p1 for 24 s","","","6 s")',
          '(alice,far,accepted,2,"in 24 s","","x: refused","","6 s")'], 'v_delivery');
SELECT send(msg('alice','lost', 9));
SELECT move_clock(27000);
SELECT results_eq($$SELECT peer, accepted, delivered, failed, under_way, due, oldest_due, oldest_accepted FROM v_delivery_summary ORDER BY peer$$,
    $$VALUES (''::text COLLATE "C", 1::bigint, 0::bigint, 0::bigint, 1::bigint, 0::bigint, '', '27 s'), ('home', 0, 1, 0, 0, 0, '', ''), ('x', 2, 0, 0, 0, 2, '3 s', '33 s')$$, 'v_delivery_summary');
DELETE FROM dm_delivery_state WHERE to_login = 'lost';
SELECT read_pair('alice', 'far', 1, 1500); SELECT bury(5, 'alice', 'far', 77), bury(7, 'alice', 'bob', until => 10);
SELECT results_eq($$SELECT what, state FROM v_delivery WHERE what <> 'text' ORDER BY 1$$,
    $$VALUES ('delete conversation'::text COLLATE "default", 'delivered' COLLATE "C"), ('delete message', 'accepted'), ('receipt', 'accepted')$$, 'receipts and tombstones in v_delivery');
SELECT is_empty($$SELECT c.relname, obj_description(c.oid) FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
    AND c.relname IN ('users','user_keys','user_access_servers_current','sync_servers','processes','active_sessions','signed_messages','dm_delivery_state',
                      'dm_sync_outbox','sync_leases','user_event_heads','user_events','message_tombstones','conversation_tombstones','read_marks','conversations','user_profiles','user_settings','dm_sync_rejects')
    AND obj_description(c.oid) !~ '(remove|go |goes|trimmed|stay|replaces)' $$, 'every table says what removes its rows');
SELECT is((SELECT (next_attempt, lease)::text FROM v_delivery WHERE outgoing_key = 'alice|far|1000|1|2'), '("overdue 3 s","p1 ran out 3 s ago")', 'overdue');
SELECT is((SELECT (p.state, p.sessions, s.state, s.behind, u.servers)::text FROM v_processes p, v_sessions s, v_users u WHERE u.login = 'two'),
    '(dead,1,lost,7,"home wss://home/ws, other wss://other/ws")', 'v_processes, v_sessions, v_users');
SELECT results_eq($$SELECT ms_in_words(m) FROM unnest('{0,59999,60000,61000,3600000,3660000,90000000,-1000}'::bigint[]) m$$,
    $$VALUES ('0 s'), ('59 s'), ('1 min'), ('1 min 1 s'), ('1 h'), ('1 h 1 min'), ('1 d 1 h'), ('-1 s')$$, 'spans in words');
SELECT * FROM finish();
