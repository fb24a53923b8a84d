-- Times in words, for the views.

CREATE OR REPLACE FUNCTION ms_in_words(p_ms bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_ms < 0 THEN '-' || ms_in_words(-p_ms)
                WHEN p_ms < 60000 THEN p_ms / 1000 || ' s'
                WHEN p_ms < 3600000 THEN p_ms / 60000 || ' min' ||
                     CASE WHEN p_ms / 1000 % 60 > 0 THEN ' ' || p_ms / 1000 % 60 || ' s' ELSE '' END
                WHEN p_ms < 86400000 THEN p_ms / 3600000 || ' h' ||
                     CASE WHEN p_ms / 60000 % 60 > 0 THEN ' ' || p_ms / 60000 % 60 || ' min' ELSE '' END
                ELSE p_ms / 86400000 || ' d' ||
                     CASE WHEN p_ms / 3600000 % 24 > 0 THEN ' ' || p_ms / 3600000 % 24 || ' h' ELSE '' END
           END
$$;
COMMENT ON FUNCTION ms_in_words(bigint) IS 'A span of milliseconds as people say it: "24 s", "4 min 10 s", "3 d 2 h".';

CREATE OR REPLACE FUNCTION due_in_words(p_at_ms bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_at_ms IS NULL THEN 'never'
                WHEN p_at_ms > now_ms() THEN 'in ' || ms_in_words(p_at_ms - now_ms())
                WHEN now_ms() - p_at_ms < 1000 THEN 'now'
                ELSE 'overdue ' || ms_in_words(now_ms() - p_at_ms) END
$$;
COMMENT ON FUNCTION due_in_words(bigint) IS 'When something is due: "in 24 s", "now", "overdue 3 s", "never".';

CREATE OR REPLACE FUNCTION ms_to_time(p_ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz 'epoch' + p_ms * interval '1 millisecond'
$$;
COMMENT ON FUNCTION ms_to_time(bigint) IS 'A stored time as a timestamp.';
