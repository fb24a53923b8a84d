-- Other servers, as the processes see them.
\ir support.psql
SELECT plan(33);
SELECT make_users();

-- Partners in memory
SELECT add_server('p1', 'wss://p1/ws', 'k1'), add_server('p1', 'wss://p1/ws', 'k2'), add_server('home', 'wss://home/ws', NULL), add_server('x', 'wss://partner.x/ws', NULL), add_server('bad', 'wss://bad/ws', NULL);
UPDATE sync_servers SET blocked = true WHERE server_login = 'bad';
SELECT is((SELECT array_agg(p::text) FROM partner_servers() p),
    '{"(bad,wss://bad/ws,t,\"\")","(home,wss://home/ws,f,\"\")","(p1,wss://p1/ws,f,\"k1 k2\")","(x,wss://partner.x/ws,f,\"\")"}', 'partners, with their keys');

-- Who is named by whom
CREATE FUNCTION unnamed(VARIADIC pairs text[]) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT array_agg(u) FROM unnamed_peers((SELECT array_agg(split_part(p, ' ', 1) ORDER BY i) FROM unnest(pairs) WITH ORDINALITY AS x (p, i)),
                                           (SELECT array_agg(split_part(p, ' ', 2) ORDER BY i) FROM unnest(pairs) WITH ORDINALITY AS x (p, i))) u $$;
SELECT is(unnamed('x wss://x/ws', 'x wss://y/ws', 'y wss://y/ws', 'z wss://z/ws'), '{2,4}', 'places of pairs that nobody names');
SELECT is(unnamed('x wss://x/ws'), NULL, 'all are named');
SELECT set_user_servers('home', 'far', '{y}', '{wss://y/ws}');
SELECT is(unnamed('x wss://x/ws'), NULL, 'one user is enough');
SELECT set_user_servers('home', 'faye', '{y}', '{wss://elsewhere/ws}');
SELECT is(unnamed('x wss://x/ws', 'y wss://elsewhere/ws'), '{1}', 'none is not');
CREATE FUNCTION known(n bigint DEFAULT 100) RETURNS text[] LANGUAGE sql AS $$
    SELECT array_agg(server_login || ' ' || url) FROM known_peers('home', n) $$;
SELECT is((SELECT array_agg(k ORDER BY k) FROM unnest(known()) k), '{"other wss://other/ws","p1 wss://p1/ws","x wss://partner.x/ws","y wss://elsewhere/ws","y wss://y/ws"}',
    'known: partners under their own address, pairs of others, not ourselves, not the blocked');
SELECT is(cardinality(known(3)), 3, 'no more than asked for');
SELECT is((known(3))[1:2], '{"p1 wss://p1/ws","x wss://partner.x/ws"}', 'partners first');

-- Neither reads all users.
INSERT INTO users (login, client_key, source, created_at_ms, refreshed_at_ms) SELECT 'u' || i, 'k', 'partner', 0, 0 FROM generate_series(1, 20000) i;
INSERT INTO user_access_servers_current SELECT 'u' || i, 1, 's' || i % 10, 'wss://s' || i % 10 || '/ws' FROM generate_series(1, 20000) i;
ANALYZE user_access_servers_current;
CREATE FUNCTION blocks(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_plan json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT json) ' || query INTO v_plan;
    RETURN (v_plan->0->'Plan'->>'Shared Hit Blocks')::bigint + (v_plan->0->'Plan'->>'Shared Read Blocks')::bigint;
END $$;
SELECT is(cardinality(known()), 15, 'with many users');
SELECT ok(blocks('SELECT * FROM known_peers(''home'', 100)') < 300, 'known_peers() steps through the index');
SELECT ok(blocks($$SELECT * FROM unnamed_peers('{s1,s2,s3,gone}', '{wss://s1/ws,wss://s2/ws,wss://s3/ws,wss://gone/ws}')$$) < 200, 'unnamed_peers() looks each up');

-- What the processes tell
CREATE FUNCTION tell(process text, logins text[], state text DEFAULT 'ready', gone text[] DEFAULT '{}', ok bigint DEFAULT 1) RETURNS boolean LANGUAGE sql AS $$
    SELECT write_peer_connections(process, array_agg(l), array_agg('wss://' || l || '/ws'), array_agg(state), array_agg('lost'::text),
        array_agg(5000::bigint), array_agg(1000::bigint), array_agg(-1::bigint), array_agg(-1::bigint), array_agg(61000::bigint), array_agg(2::bigint),
        array_agg(1::bigint), array_agg(2::bigint), array_agg(3::bigint), array_agg(4::bigint), array_agg(ok), array_agg(6::bigint), array_agg(7::bigint), array_agg(8::bigint),
        gone, (SELECT coalesce(array_agg('wss://' || g || '/ws'), '{}') FROM unnest(gone) g))
    FROM unnest(logins) l $$;
SELECT is(tell('p1', '{p1,y}'), false, 'an unknown process writes nothing');
SELECT is_empty('SELECT * FROM peer_connections', 'nothing');
SELECT register_process('p1', 'frontd', 'h', 1), register_process('p2', 'deliveryd', 'h', 2);
SELECT is(tell('p1', '{p1,y}'), true, 'written');
SELECT is(tell('p2', '{y}', 'backoff'), true, 'by another process, too');
SELECT is((SELECT array_agg((server_login, url, partner, blocked, process, state, last_error, error_ago, connected_ago, active_ago, ping_ago, pong_ago)::text
                  ORDER BY process, server_login) FROM v_peers WHERE process <> ''),
    ARRAY['(y,wss://y/ws,f,f,deliveryd,backoff,lost,"1 min 1 s","5 s","1 s","","")',
          '(p1,wss://p1/ws,t,f,frontd,ready,lost,"1 min 1 s","5 s","1 s","","")',
          '(y,wss://y/ws,f,f,frontd,ready,lost,"1 min 1 s","5 s","1 s","","")'], 'v_peers');
SELECT is((SELECT (reconnects, queued_realtime, queued_normal, queued_bulk, in_flight, ok, failed, timed_out, late)::text FROM v_peers WHERE server_login = 'p1'),
    '(2,1,2,3,4,1,6,7,8)', 'counters');
SELECT is((SELECT array_agg((server_login, blocked, state)::text ORDER BY server_login) FROM v_peers WHERE process = ''),
    '{"(bad,t,\"\")","(home,f,\"\")","(x,f,\"\")"}', 'partners that nobody has called');
SELECT is(tell('p1', '{p1}', 'backoff', '{y}', 2), true, 'written again');
SELECT is((SELECT array_agg((server_login, state, ok)::text) FROM v_peers WHERE process = 'frontd'), '{"(p1,backoff,2)"}', 'what changed, without what is gone');
SELECT is((SELECT count(*) FROM peer_connections WHERE process_id = 'p2')::int, 1, 'the other process keeps its own');
SELECT is(tell('p1', '{}', gone => '{}'), true, 'nothing to say');
SELECT unregister_process('p2');
SELECT is_empty($$SELECT * FROM peer_connections WHERE process_id = 'p2'$$, 'a process takes its rows along');
SELECT move_clock(31000);
SELECT is_empty($$SELECT * FROM v_peers WHERE process <> ''$$, 'the word of a dead process is not shown');
SELECT move_clock(30000); SELECT register_process('p3', 'syncd', 'h', 3);
SELECT is_empty('SELECT * FROM peer_connections', 'and goes with it');
SET ROLE shine_daemon; SELECT is(tell('p3', '{p1}'), true, 'a daemon may write');
SET ROLE shine_reader; SELECT is((SELECT state FROM v_peers WHERE process = 'syncd'), 'ready', 'and people may read');
RESET ROLE;

-- Blocking
CREATE FUNCTION row_of(l text) RETURNS text LANGUAGE sql AS $$ SELECT (url, blocked)::text FROM sync_servers WHERE server_login = l $$;
SELECT is((block_server('p1', true), block_server('p1', true))::text, '(t,f)', 'once');
SELECT is(row_of('p1'), '(wss://p1/ws,t)', 'its row stays');
SELECT is((block_server('p1', false), block_server('p1', false))::text, '(t,f)', 'and back');
SELECT is(row_of('p1'), '(wss://p1/ws,f)', 'as it was');
SELECT block_server('stranger', true);
SELECT is(row_of('stranger'), '("",t)', 'a stranger has a row for it');
SELECT block_server('stranger', false);
SELECT is(row_of('stranger'), NULL, 'as long as it lasts');
SELECT * FROM finish();
