-- Users learnt from other servers.
\ir support.psql
SELECT plan(38);
SELECT make_users();
CREATE FUNCTION learn(login text, key text, source text, who text, VARIADIC servers text[]) RETURNS integer LANGUAGE sql AS $$
    SELECT import_user('home', login, key, NULL, NULL, source, who, servers, (SELECT array_agg('wss://' || s || '/ws') FROM unnest(servers) s)) $$;
CREATE FUNCTION shown(l text) RETURNS text LANGUAGE sql AS $$
    SELECT concat_ws(' ', client_key, source, imported_from, coalesce((SELECT string_agg(server_login, '+' ORDER BY slot) FROM user_access_servers_current a WHERE a.login = l), '-'), other_key, other_key_from) FROM users WHERE users.login = l $$;

-- Who is asked
SELECT add_server('p1', 'wss://p1/ws', NULL), add_server('p2', 'wss://p2/ws', NULL), add_server('home', 'wss://home/ws', NULL), add_server('x', 'wss://partner.x/ws', NULL), add_server('bad', 'wss://bad/ws', NULL);
UPDATE sync_servers SET blocked = true WHERE server_login = 'bad';
CREATE FUNCTION asked(l text, sender text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(concat_ws(' ', server_login, url, kind, CASE WHEN home THEN 'home' END), ', '), '') FROM look_up_servers('home', l, sender) $$;
SELECT is(asked('nobody', ''), 'p1 wss://p1/ws partner, p2 wss://p2/ws partner, x wss://partner.x/ws partner', 'partners, not blocked, not ourselves');
SELECT is(asked('far', ''), 'y wss://y/ws home home, x wss://partner.x/ws partner home, p1 wss://p1/ws partner, p2 wss://p2/ws partner', 'the user''s own servers first; a partner''s address is the partner''s');
SELECT matches(asked('nobody', 'other'), 'x wss://partner.x/ws partner, other wss://other/ws sender$', 'the sender last, where its users say it is');
SELECT is(asked('nobody', 'p1'), asked('nobody', ''), 'a partner is not asked twice');
SELECT is(asked('nobody', 'unheard'), asked('nobody', ''), 'nobody knows where that is');
SELECT is(asked('nobody', 'bad'), asked('nobody', ''), 'a blocked sender is not asked');
SELECT is(asked('nobody', 'home'), asked('nobody', ''), 'nor are we');
SELECT is(asked('far', 'y'), asked('far', ''), 'nor a sender that is asked anyway');
SELECT add_user('home', 'liar', 'k', NULL, NULL, 'partner', '{other}', '{wss://evil/ws}');
SELECT matches(asked('nobody', 'other'), 'other wss://other/ws sender$', 'one user does not outvote the others');

-- New users
SELECT is(learn('new', 'k1', 'partner', 'p1', 'p1'), 0, 'kept');
SELECT is(shown('new'), 'k1 partner p1 p1', 'as told');
SELECT results_eq($$SELECT client_key COLLATE "default" FROM user_keys WHERE login = 'new'$$, $$VALUES ('k1')$$, 'with its key');
SELECT is(learn('guess', 'k1', 'provisional', 's', 's'), 0, 'a sender''s word');
SELECT is(shown('guess'), 'k1 provisional s s', 'is provisional');
SELECT is(learn('ours', 'k1', 'provisional', 's', 's', 'home'), 3, 'a stranger does not make us serve anybody');
SELECT is(shown('ours'), NULL, 'nor know them');
SELECT is(learn('ours', 'k1', 'partner', 'p1', 'p1', 'home'), 0, 'a partner does');
SELECT is((SELECT count(*) FROM user_event_heads WHERE owner_login IN ('ours', 'new', 'guess'))::int, 1, 'then there is a head');

-- Local users and users served here
SELECT is(learn('alice', 'k9', 'partner', 'p1', 'p1'), 1, 'a local record');
SELECT is(shown('alice'), 'key local home', 'stays, and nothing is noted');
SELECT is(learn('ours', 'k1', 'partner', 'p2', 'p2'), 0, 'somebody served here is confirmed');
SELECT is(shown('ours'), 'k1 partner p2 p1+home', 'but not moved');

-- Confirming and moving
SELECT move_clock(5000);
SELECT is((SELECT age_ms FROM get_user('new')), 5000::bigint, 'the age of a record');
SELECT is(learn('new', 'k1', 'partner', 'p2', 'z', 'p1'), 0, 'moved');
SELECT is(shown('new') || (SELECT age_ms FROM get_user('new')), 'k1 partner p2 z+p10', 'and confirmed');
SELECT is(learn('new', 'k1', 'provisional', 'stranger', 'stranger'), 1, 'a stranger has no say');
SELECT is(learn('new', 'k1', 'provisional', 'z', 'w'), 0, 'an access server has');
SELECT is(shown('new'), 'k1 partner z w', 'so a user can leave it');

-- Keys
SELECT is(learn('new', 'k2', 'partner', 'p1', 'p1'), 2, 'the first key stays');
SELECT is(shown('new'), 'k1 partner z w k2 p1', 'the other one is noted, nothing else changes');
SELECT results_eq($$SELECT other_key COLLATE "default", other_key_from COLLATE "default" FROM v_users WHERE login = 'new'$$, $$VALUES ('k2', 'p1')$$, 'where people see it');
SELECT is(learn('guess', 'k3', 'provisional', 's', 's'), 2, 'a provisional key stays against another guess');
SELECT is(learn('guess', 'k4', 'partner', 'p1', 'p1'), 0, 'but not against a partner');
SELECT is(shown('guess') || (SELECT string_agg(client_key, ',' ORDER BY client_key) FROM user_keys WHERE login = 'guess'), 'k4 partner p1 p1k1,k4', 'every key ever accepted is kept');
SELECT settle_user_key('new', false); SELECT is(shown('new'), 'k1 partner z w', 'forgotten');
SELECT learn('new', 'k2', 'partner', 'p1', 'p1'); SELECT settle_user_key('new', true);
SELECT is(shown('new') || settle_user_key('new', true), 'k2 partner z wfalse', 'accepted, once');

-- Coming here
SELECT results_eq($$SELECT add_user('home', 'new', 'k9', NULL, NULL, 'local', '{home}', '{wss://home/ws}'), add_user('home', 'new', 'k2', NULL, NULL, 'local', '{w}', '{wss://w/ws}'), add_user('home', 'new', 'k2', NULL, NULL, 'local', '{home}', '{wss://home/ws}')$$, $$VALUES (2, 1, 0)$$, 'an imported user is added with the same key, to be served here');
SELECT is(shown('new'), 'k2 local home', 'and is a local one');
SELECT * FROM finish();
