-- The roles of daemons and of people.
\ir support.psql
SELECT plan(12);
SELECT make_users();
SELECT register_process('p1', 'frontd', 'h', 1);
SELECT create_session('home', 'p1', 's', 'alice', '', 'secret', NULL, 'live', 50);
SELECT has_role('shine_daemon'); SELECT has_role('shine_reader');
SELECT is((SELECT count(*) FROM pg_roles WHERE rolname LIKE 'shine%' AND (rolcanlogin OR rolsuper OR rolcreaterole))::int, 0, 'neither logs in by itself or may more');
SELECT lives_ok('SELECT grant_roles()', 'granting again is harmless');

SET ROLE shine_daemon;
SELECT results_eq($$SELECT verdict FROM send(msg('alice','bob', 1)) UNION ALL SELECT verdict FROM bury(5, 'alice', 'bob', 1) UNION ALL SELECT verdict FROM recv(msg('far','bob', 1))$$, $$VALUES (0), (0), (0)$$, 'a daemon writes');
SELECT throws_ok('CREATE TABLE public.t ()', '42501', NULL, 'but changes no schema');
SELECT throws_ok('DROP TABLE conversations', '42501', NULL, 'and drops nothing');
SET ROLE shine_reader;
SELECT lives_ok('SELECT * FROM v_delivery, v_delivery_summary, v_processes, v_sessions, v_users, signed_messages', 'people read');
SELECT throws_ok('DELETE FROM dm_delivery_state', '42501', NULL, 'and change nothing');
SELECT throws_ok('SELECT storage_pwd FROM active_sessions', '42501', NULL, 'nor see what devices keep secret');
RESET ROLE;
CREATE VIEW later AS SELECT 1 AS x; SET ROLE shine_reader;
SELECT lives_ok('SELECT * FROM later', 'what a later release adds is readable, too');
RESET ROLE;
-- Somebody who may not create roles, where they do not exist; undone at once, roles belong to the cluster.
CREATE FUNCTION without_rights() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_fine boolean;
BEGIN
    BEGIN
        ALTER ROLE shine_daemon RENAME TO shine_was_daemon;
        ALTER ROLE shine_reader RENAME TO shine_was_reader;
        CREATE ROLE shine_nobody;
        SET LOCAL ROLE shine_nobody;
        PERFORM grant_roles();
        v_fine := NOT EXISTS (SELECT FROM pg_roles WHERE rolname IN ('shine_daemon', 'shine_reader'));
        RAISE EXCEPTION 'undo';
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
    RETURN v_fine;
END $$;
SELECT ok(without_rights(), 'whoever may not create roles goes on without');
SELECT * FROM finish();
