-- The functions of sql/functions/devices.sql.
BEGIN;
SELECT plan(30);

INSERT INTO users (login, client_key, source, created_at_ms, refreshed_at_ms)
SELECT l, 'k', 'local', 1, 1 FROM unnest('{alice,bob,carol}'::text[]) l;
INSERT INTO processes (process_id, kind, host, pid, started_at_ms, heartbeat_at_ms)
VALUES ('here', 'frontd', 'h', 1, 1, now_ms()), ('dead', 'frontd', 'h', 2, 1, now_ms() - 30001);

INSERT INTO active_sessions (session_id, login, session_key, storage_pwd, client_info, event_mode,
    connected_to, created_at_ms, seen_at_ms, acked_pts)
SELECT s, l, '\x00', 'pwd', info, 'pts', c, 11, 12, 13
FROM (SELECT * FROM (VALUES ('a1', 'alice', 'here', '"phone"'), ('a2', 'alice', 'dead', NULL),
                            ('a3', 'alice', NULL, NULL), ('b1', 'bob', 'here', NULL)) few
      UNION ALL SELECT 'c' || lpad(i::text, 4, '0'), 'carol', NULL, repeat('x', i % 7)
      FROM generate_series(0, 999) i) v (s, l, c, info);

-- --- list_sessions ---

SELECT results_eq(
    $$SELECT * FROM list_sessions('alice', 'a1', 1, '', 100, 100000)$$,
    $$VALUES (true, 'a1', '"phone"', 'pts', 11::bigint, 12::bigint, 13::bigint, true, true),
             (true, 'a2', NULL, 'pts', 11, 12, 13, false, true),
             (true, 'a3', NULL, 'pts', 11, 12, 13, false, false)$$,
    'own sessions; a process without heartbeat holds no connection');
SELECT results_eq(
    $$SELECT valid, session_id FROM list_sessions('alice', 'a3', 1, 'a1', 100, 100000)$$,
    $$VALUES (true, 'a2'), (true, 'a3')$$, 'what comes after a position');
SELECT results_eq(
    $$SELECT valid, session_id FROM list_sessions('alice', 'a1', 1, 'a9', 100, 100000)$$,
    $$VALUES (true, NULL)$$, 'nothing after the last one');
SELECT results_eq(
    $$SELECT valid, session_id FROM list_sessions('alice', 'a1', 2, '', 100, 100000)$$,
    $$VALUES (false, NULL)$$, 'another generation may not ask');
SELECT results_eq(
    $$SELECT valid, session_id FROM list_sessions('alice', 'gone', 1, '', 100, 100000)$$,
    $$VALUES (false, NULL)$$, 'a closed session may not ask');
SELECT results_eq(
    $$SELECT valid, session_id FROM list_sessions('alice', 'b1', 1, '', 100, 100000)$$,
    $$VALUES (false, NULL)$$, 'another user''s session may not ask');

-- a1 has 7 bytes of client_info.
SELECT results_eq(
    format($$SELECT session_id, more FROM list_sessions('alice', 'a1', 1, '', 100, %s)$$, bytes),
    format($$SELECT 'a' || i, i < 3 FROM generate_series(1, %s) i$$, n),
    format('%s bytes hold %s sessions', bytes, n))
FROM (VALUES (1, 1), (99, 1), (107, 1), (206, 1), (207, 2), (306, 2), (307, 3)) v (bytes, n);

CREATE FUNCTION walk() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    v_after text := '';
    v_more boolean := true;
    r record;
BEGIN
    WHILE v_more LOOP
        v_more := false;
        FOR r IN SELECT * FROM list_sessions('carol', 'c0000', 1, v_after, 10, 500) LOOP
            RETURN NEXT r.session_id;
            v_after := r.session_id;
            v_more := r.more;
        END LOOP;
    END LOOP;
END $$;
SELECT results_eq('SELECT * FROM walk()',
    $$SELECT 'c' || lpad(i::text, 4, '0') FROM generate_series(0, 999) i$$,
    'pages together give every session once');

-- --- close_session ---

SELECT is(close_session('alice', 'a1', 1, 'nope'), 1, 'unknown session');
SELECT is(close_session('alice', 'a1', 1, 'b1'), 2, 'another user''s session');
SELECT is(close_session('alice', 'a1', 2, 'a2'), 3, 'asked by a later generation than stored');
SELECT is(close_session('alice', 'a1', 0, 'a2'), 3, 'asked by an earlier one');
SELECT is(close_session('alice', 'gone', 1, 'a2'), 3, 'asked by a closed session');
SELECT is(close_session('alice', 'b1', 1, 'a2'), 3, 'asked by another user''s session');
SELECT is(close_session('alice', 'gone', 1, 'gone'), 3, 'a closed session closes itself');
SELECT is((SELECT count(*) FROM active_sessions WHERE login <> 'carol'), 4::bigint, 'all still there');
SELECT is(close_session('alice', 'a1', 1, 'a2'), 0, 'another one');
SELECT is(close_session('alice', 'a1', 1, 'a2'), 1, 'is gone then');
SELECT is(close_session('alice', 'a1', 1, 'a1'), 0, 'itself');
SELECT is(close_session('alice', 'a1', 1, 'a3'), 3, 'and asks no more');
SELECT is((SELECT array_agg(session_id::text ORDER BY session_id) FROM active_sessions
           WHERE login <> 'carol'), '{a3,b1}', 'only those two are gone');
SELECT is_empty($$SELECT * FROM login_session('here', 'a1', NULL, 'live')$$, 'nobody logs into a closed one');

-- --- outdated_sessions ---

UPDATE active_sessions SET generation = 5 WHERE session_id = 'b1';
SELECT results_eq(
    $$SELECT * FROM outdated_sessions('{a3,a1,b1,b1,b1}', '{1,1,4,5,6}')$$,
    $$VALUES ('a1', 1::bigint, 0::bigint), ('b1', 4, 5), ('b1', 6, 5)$$,
    'gone, at a later and at an earlier generation; not what is as asked');
SELECT is_empty($$SELECT * FROM outdated_sessions('{}', '{}')$$, 'nothing asked');

SELECT * FROM finish();
ROLLBACK;
