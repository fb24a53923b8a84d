-- The clock and the few constants that several functions share.

CREATE OR REPLACE FUNCTION public.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint $$;
COMMENT ON FUNCTION now_ms() IS 'The time of everything stored: Unix milliseconds by the database''s clock. Tests replace it to move time.';

CREATE OR REPLACE FUNCTION delivery_schedule() RETURNS bigint[] LANGUAGE sql IMMUTABLE AS
$$ SELECT '{0,30000,300000,1500000,3600000}'::bigint[] $$;
COMMENT ON FUNCTION delivery_schedule() IS 'The default schedule: offsets of the attempts from acceptance, in ms. The second one is also the lease of the first attempt.';

CREATE OR REPLACE FUNCTION live_processes() RETURNS text[] LANGUAGE sql STABLE AS
$$ SELECT coalesce(array_agg(process_id::text), '{}') FROM processes
   WHERE heartbeat_at_ms > now_ms() - 30000 $$;
COMMENT ON FUNCTION live_processes() IS 'Processes whose heartbeat is younger than 30 s.';
