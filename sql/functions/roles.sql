-- The roles that daemons and people connect as.

-- Both are group roles that cannot log in: an operator grants them to, or turns them into, whoever
-- logs in (GRANT shine_daemon TO somebody; ALTER ROLE shine_daemon LOGIN PASSWORD ...). Roles belong
-- to the whole cluster, and other databases may create them at the same time. Whoever may not create
-- roles can still grant to those that are there; without them, nothing is granted and only the owner
-- of the schema can work with it. May be called again at any time.
CREATE OR REPLACE FUNCTION grant_roles() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY '{shine_daemon,shine_reader}'::text[] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = v_role);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role % does not exist and % may not create it: nothing is granted', v_role, current_user
                    USING HINT = 'Create it and run SELECT grant_roles().';
        END;
    END LOOP;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'shine_daemon') THEN
        GRANT USAGE ON SCHEMA public TO shine_daemon;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO shine_daemon;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO shine_daemon;
        -- What is created later, by the same role.
        ALTER DEFAULT PRIVILEGES IN SCHEMA public
            GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO shine_daemon;
        ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE ON SEQUENCES TO shine_daemon;
        IF to_regclass('public.schema_migrations') IS NOT NULL THEN
            REVOKE INSERT, UPDATE, DELETE ON schema_migrations FROM shine_daemon;
        END IF;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'shine_reader') THEN
        GRANT USAGE ON SCHEMA public TO shine_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO shine_reader;
        ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO shine_reader;
        -- Secrets of devices; v_sessions shows the rest.
        REVOKE SELECT ON active_sessions FROM shine_reader;
    END IF;
END $$;
COMMENT ON FUNCTION grant_roles() IS 'Create the roles shine_daemon (all data, no DDL) and shine_reader (reads, except secrets of devices) if that is allowed, and grant them what they need.';
