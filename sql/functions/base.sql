-- The clock and the few constants that several functions share.

-- clock_timestamp(), not statement_timestamp(): a batch that waited for a head must not store the time
-- before its wait, and must not promise a lease that has half run out. The price: such a body is never
-- inlined, so hot functions call it once and pass the value on.
CREATE OR REPLACE FUNCTION public.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint $$;
COMMENT ON FUNCTION now_ms() IS 'The time of everything stored: Unix milliseconds by the database''s clock. Tests replace it to move time.';

CREATE OR REPLACE FUNCTION delivery_schedule() RETURNS bigint[] LANGUAGE sql IMMUTABLE AS
$$ SELECT '{0,30000,300000,1500000,3600000}'::bigint[] $$;
COMMENT ON FUNCTION delivery_schedule() IS 'The default schedule: offsets of the attempts from acceptance, in ms. The second one is also the lease of the first attempt.';

-- In plpgsql: a body in SQL would be parsed and planned anew in every transaction.
CREATE OR REPLACE FUNCTION live_processes(p_now bigint) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(process_id::text), '{}') FROM processes
            WHERE heartbeat_at_ms > p_now - 30000);
END $$;
COMMENT ON FUNCTION live_processes(bigint) IS 'Processes whose heartbeat is younger than 30 s.';
