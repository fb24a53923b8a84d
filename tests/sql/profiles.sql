-- Signed profiles: the newest holds, wherever it comes from, and everything follows it at once.
\ir support.psql
SELECT plan(60);
SELECT make_users();
-- A profile: `sig` is one letter, servers at their own addresses; `ahead` in ms, NULL = no limit.
CREATE FUNCTION sign(l text, tm bigint, servers text[], sig text DEFAULT 'm', key text DEFAULT 'key', enc text DEFAULT NULL, ahead bigint DEFAULT NULL)
RETURNS integer LANGUAGE sql AS $$
    SELECT apply_profile('home', l, key, enc, 'sig of ' || enc, servers, (SELECT array_agg('wss://' || s || '/ws' ORDER BY o) FROM unnest(servers) WITH ORDINALITY x (s, o)),
                         tm, sig::bytea, format('%s %s %s', tm, sig, array_to_string(servers, '+')), ahead) $$;
CREATE FUNCTION learn(l text, source text, who text, servers text[], tm bigint DEFAULT NULL, sig text DEFAULT 'm', key text DEFAULT 'key', enc text DEFAULT NULL, penc text DEFAULT NULL)
RETURNS text LANGUAGE sql AS $$
    SELECT verdict || CASE WHEN changed THEN ' changed' ELSE '' END FROM import_record('home', l, key, enc, 'sig of ' || enc, source, who, servers,
        (SELECT array_agg('wss://' || s || '/ws' ORDER BY o) FROM unnest(servers) WITH ORDINALITY x (s, o)),
        tm, sig::bytea, CASE WHEN tm IS NOT NULL THEN format('%s %s %s', tm, sig, array_to_string(servers, '+')) END, penc, 'sig of ' || penc) $$;
CREATE FUNCTION shown(l text) RETURNS text LANGUAGE sql AS $$
    SELECT concat_ws(' ', source, coalesce((SELECT string_agg(server_login, '+' ORDER BY slot) FROM user_access_servers_current a WHERE a.login = l), '-'), enc_key) FROM users WHERE users.login = l $$;
CREATE FUNCTION profile(l text) RETURNS text LANGUAGE sql AS $$ SELECT profile FROM get_user(l) $$;

-- The newest holds
SELECT is(profile('alice'), NULL, 'nobody has one at first');
SELECT is(sign('nobody', 1, '{x}'), 3, 'nobody''s');
SELECT is(sign('alice', 100, '{home,x}', key => 'other'), 2, 'another key');
SELECT is(sign('alice', 100, '{home,x}'), 0, 'a first one');
SELECT is(profile('alice'), '100 m home+x', 'is told to others as it came');
SELECT is(shown('alice'), 'local home+x', 'and holds');
SELECT is(sign('alice', 99, '{y}'), 1, 'an older one');
SELECT is(sign('alice', 100, '{home,x}'), 1, 'the same again');
SELECT is(profile('alice') || shown('alice'), '100 m home+xlocal home+x', 'change nothing');
SELECT is(sign('alice', 100, '{home,y}', 'a'), 1, 'of the same time, with a smaller signature');
SELECT is(sign('alice', 100, '{home,y}', 'z'), 0, 'with a larger one');
SELECT is(shown('alice'), 'local home+y', 'so all servers come to the same');
SELECT is(sign('alice', 100, '{home,y}', 'z', enc => 'E1'), 0, 'the same with an encryption key');
SELECT is(sign('alice', 100, '{home,y}', 'z'), 1, 'and stripped of it');
SELECT is(shown('alice'), 'local home+y E1', 'it stays');
SELECT is(sign('alice', 101, '{home,y}'), 0, 'a newer one without');
SELECT is(shown('alice'), 'local home+y E1', 'does not take it away');

-- In whatever order they come, all servers end with the same: 4 profiles in each of their 24 orders
CREATE FUNCTION ends() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    i int; j int; k int; l int;
BEGIN
    FOR i IN 1..4 LOOP FOR j IN 1..4 LOOP FOR k IN 1..4 LOOP FOR l IN 1..4 LOOP
        CONTINUE WHEN (SELECT count(DISTINCT x) FROM unnest(ARRAY[i, j, k, l]) x) < 4;
        DELETE FROM user_profiles WHERE login = 'tom';
        PERFORM sign('tom', (ARRAY[1, 2, 2, 2])[x], (ARRAY['{a}', '{b,home}', '{home,c}', '{home,c}'])[x]::text[], (ARRAY['z', 'a', 'b', 'b'])[x], enc => (ARRAY['E', 'E', NULL, 'F'])[x])
        FROM unnest(ARRAY[i, j, k, l]) x;
        RETURN NEXT profile('tom') || ' ' || shown('tom') || (SELECT enc_key_sig FROM user_profiles WHERE login = 'tom');
    END LOOP; END LOOP; END LOOP; END LOOP;
END $$;
SELECT results_eq($$SELECT e COLLATE "default", count(*)::int FROM ends() e GROUP BY 1$$, $$VALUES ('2 b home+c local home+c Fsig of F', 24)$$, 'the order does not matter');

-- Clocks
SELECT is(sign('alice', now_ms() + 901, '{x}', ahead => 900), 4, 'too far ahead');
SELECT is(sign('alice', now_ms() + 900, '{home,z}', ahead => 900), 0, 'just not');
SELECT is(sign('alice', 9007199254740991, '{home,y}'), 0, 'from servers, any time');
SELECT is(sign('alice', 9007199254740991, '{x}', ahead => 9007199254740991), 1, 'the largest numbers there are');

-- What depends on the servers
SELECT is((SELECT string_agg(server_login || coalesce(mark_from, '-'), ',' ORDER BY server_login) FROM sync_leases WHERE owner_login = 'alice'), 'x,y,z', 'each new second server is an order to fill the outbox');
UPDATE sync_leases SET mark_from = NULL;
SELECT sign('two', 100, '{other,home}');
SELECT is_empty($$SELECT FROM sync_leases WHERE mark_from = ''$$, 'another order of servers is none');
SELECT send(msg('bob', 'far', 1), msg('bob', 'faye', 2));
SELECT is(sign('far', 100, '{z,x}'), 0, 'somebody far away');
SELECT results_eq($$SELECT route_hint COLLATE "default" FROM dm_delivery_state WHERE from_login = 'bob' ORDER BY outgoing_key$$, $$VALUES ('z'), ('x')$$, 'waiting rows go where the user is now');
SELECT is(sign('faye', 100, '{home}'), 0, 'somebody who comes here');
SELECT results_eq($$SELECT to_login COLLATE "default", next_attempt_at_ms > now_ms() FROM dm_delivery_state WHERE from_login = 'bob' ORDER BY outgoing_key$$, $$VALUES ('far', true), ('faye', false)$$, 'gets what waited for them at once');
SELECT is(shown('faye'), 'partner home', 'is served');
SELECT is((SELECT count(*) FROM user_event_heads WHERE owner_login = 'faye')::int, 1, 'and has a head');
SELECT results_eq($$SELECT verdict FROM recv(msg('bob', 'faye', 3))$$, $$VALUES (0)$$, 'and takes messages');
SELECT is(sign('bob', 100, '{x,y}'), 0, 'somebody who goes');
SELECT is(shown('bob'), 'profile x+y', 'is not this server''s own any more');
SELECT is((SELECT verdict FROM recv(msg('alice', 'bob', 4))), (SELECT verdict FROM recv(msg('alice', 'far', 5))), 'and is refused like anybody else');
SELECT is(sign('bob', 200, '{home}'), 0, 'and comes back');
SELECT is(shown('bob'), 'local home', 'as its own');

-- Records of other servers
SELECT is(learn('far', 'partner', 'p', '{q}'), '0', 'an unsigned record confirms');
SELECT is(shown('far'), 'partner z+x', 'but moves nobody who has signed');
SELECT is(learn('far', 'provisional', 'stranger', '{w}', 200), '0 changed', 'a signed one does, whoever tells it');
SELECT is(shown('far') || profile('far'), 'partner w200 m w', 'and is kept');
SELECT is(learn('far', 'partner', 'p', '{v}', 150), '0', 'an old one');
SELECT is(learn('far', 'partner', 'p', '{v}', 300, key => 'forged'), '2', 'and a forged one');
SELECT is(shown('far') || profile('far'), 'partner w200 m w', 'change nothing');
SELECT is((SELECT other_key FROM v_users WHERE login = 'far'), 'forged', 'the other key is shown');
SELECT is(learn('alice', 'partner', 'p', '{x}', 5), '1', 'a local record and an old profile');
SELECT is(learn('bob', 'partner', 'p', '{home,x}', 300), '0 changed', 'and a newer one');
SELECT is(shown('bob'), 'local home+x', 'that holds');
SELECT is(learn('new', 'partner', 'p', '{x,y}', 7, enc => 'E1'), '0 changed', 'somebody new, with a profile');
SELECT is(shown('new') || profile('new'), 'partner x+y E17 m x+y', 'and the rest of the record');
SELECT learn('new', 'partner', 'p', '{x,y}', 8, enc => 'E2', penc => 'E2'); SELECT learn('new', 'partner', 'p', '{x,y}', 8, enc => 'E1');
SELECT is(shown('new'), 'partner x+y E2', 'a signed encryption key is not undone by an unsigned record');

SELECT is(add_user('home', 'new', 'key', NULL, NULL, 'local', '{home}', '{wss://home/ws}'), 1, 'nor are the servers by adding the user here');
SELECT is(shown('new'), 'partner x+y E2', 'who is where the profile says');

-- Strangers
SELECT is(learn('guess', 'provisional', 's', '{s}', 7), '0 changed', 'a stranger''s user, signed');
SELECT is(sign('guess', 8, '{home}'), 5, 'does not make us serve anybody');
SELECT is(learn('guess', 'provisional', 's', '{home}', 8), '3', 'nor does the stranger');
SELECT move_clock(1);
SELECT is(learn('guess', 'partner', 'p', '{q}', key => 'true'), '0 changed', 'a partner knows the true key');
SELECT is(shown('guess') || coalesce(profile('guess'), ''), 'partner q', 'and what the false one signed is gone');

-- Whom to tell
SELECT add_server('y', 'wss://partner.y/ws', NULL), add_server('bad', 'wss://bad/ws', NULL); UPDATE sync_servers SET blocked = true WHERE server_login = 'bad';
SELECT set_user_servers('home', 'tom', '{home,x}', '{wss://home/ws,wss://x/old}');
CREATE FUNCTION told(tm bigint, servers text[], urls text[]) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(concat_ws(' ', verdict, server_login, url), ', ' ORDER BY server_login) FROM publish_profile('home', 'tom', 'key', NULL, NULL, servers, urls, tm, 'm', 'r', NULL) $$;
SELECT is(told(5, '{y,bad}', '{wss://y/ws,wss://bad/ws}'), '0 x wss://x/old, 0 y wss://partner.y/ws', 'servers of before and of now, where they are; not us, nobody blocked');
SELECT is(told(5, '{y,bad}', '{wss://y/ws,wss://bad/ws}'), '1', 'what is not newer is not passed on');
SELECT results_eq($$SELECT client_key COLLATE "default" FROM keys_of_user('guess')$$, $$VALUES ('true'), ('key')$$, 'every key, for old messages');
SELECT * FROM finish();
