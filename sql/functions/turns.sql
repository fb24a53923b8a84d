-- Whose turn it is to be pulled: one row of sync_leases per owner and second server, with a lease, so
-- that several syncd share the work and a killed one is taken over.

-- Make everybody due who is served here and has a second server, or only those whose second server is
-- p_server: p_limit owners after p_after. Returns where to go on, NULL = that was all.
CREATE OR REPLACE FUNCTION order_turns(p_me text, p_server text, p_after text, p_limit integer)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_owners text[];
    v_servers text[];
BEGIN
    SELECT array_agg(login), array_agg(server_login) INTO v_owners, v_servers
    FROM (SELECT b.login::text, b.server_login::text
          FROM user_access_servers_current a
          JOIN user_access_servers_current b ON b.login = a.login AND b.server_login <> p_me
          WHERE a.server_login = p_me AND a.login > p_after
            AND (p_server IS NULL OR b.server_login = p_server)
          ORDER BY b.login LIMIT p_limit) x;
    INSERT INTO sync_leases AS l (owner_login, server_login, due_at_ms)
    SELECT v_owners[i], v_servers[i], n.now
    FROM generate_series(1, cardinality(v_owners)) i, (SELECT now_ms() AS now OFFSET 0) n
    ORDER BY 1, 2
    ON CONFLICT (owner_login, server_login) DO UPDATE SET due_at_ms = excluded.due_at_ms
        WHERE l.due_at_ms IS NULL OR l.due_at_ms > excluded.due_at_ms;
    RETURN CASE WHEN cardinality(v_owners) = p_limit THEN v_owners[p_limit] END;
END $$;
COMMENT ON FUNCTION order_turns(text, text, text, integer) IS 'Make owners due to be pulled from their second servers.';

-- Take at most p_max turns that are due, the oldest of each server, servers in p_skip left out.
CREATE OR REPLACE FUNCTION claim_turns(p_me text, p_process text, p_skip text[], p_max integer,
                                       p_lease_ms bigint)
RETURNS TABLE (owner_login text, server_login text, url text)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := now_ms();
    v_peer text;
    v_owner text;
    v_url text;
    v_blocked boolean;
    v_taken integer := 0;
BEGIN
    FOR v_peer IN
        WITH RECURSIVE peers(login) AS (
            (SELECT l.server_login::text FROM sync_leases l WHERE l.due_at_ms IS NOT NULL
             ORDER BY l.server_login LIMIT 1)
            UNION ALL
            SELECT (SELECT l.server_login::text FROM sync_leases l
                    WHERE l.due_at_ms IS NOT NULL AND l.server_login > p.login
                    ORDER BY l.server_login LIMIT 1)
            FROM peers p WHERE p.login IS NOT NULL)
        SELECT p.login FROM peers p WHERE p.login IS NOT NULL AND NOT p.login = ANY (p_skip)
    LOOP
        EXIT WHEN v_taken >= p_max;
        LOOP
            SELECT l.owner_login INTO v_owner FROM sync_leases l
            WHERE l.server_login = v_peer AND l.due_at_ms IS NOT NULL
              AND GREATEST(l.due_at_ms, l.lease_until_ms) <= v_now
            ORDER BY GREATEST(l.due_at_ms, l.lease_until_ms) LIMIT 1
            FOR UPDATE SKIP LOCKED;
            EXIT WHEN NOT FOUND;
            SELECT coalesce(s.url, a.url)::text, coalesce(s.blocked, false) INTO v_url, v_blocked
            FROM user_access_servers_current a
            LEFT JOIN sync_servers s ON s.server_login = a.server_login
            WHERE a.login = v_owner AND a.server_login = v_peer
              AND EXISTS (SELECT FROM user_access_servers_current b
                          WHERE b.login = v_owner AND b.server_login = p_me);
            IF NOT FOUND OR v_blocked THEN
                -- No second server any more; a blocked one may be let in again.
                UPDATE sync_leases l SET due_at_ms = CASE WHEN v_blocked THEN v_now + 600000 END,
                    lease_owner = NULL, lease_until_ms = NULL
                WHERE l.owner_login = v_owner AND l.server_login = v_peer;
                CONTINUE;
            END IF;
            UPDATE sync_leases l SET lease_owner = p_process, lease_until_ms = v_now + p_lease_ms,
                started_at_ms = v_now
            WHERE l.owner_login = v_owner AND l.server_login = v_peer;
            v_taken := v_taken + 1;
            RETURN QUERY SELECT v_owner, v_peer, v_url;
            EXIT;
        END LOOP;
    END LOOP;
END $$;
COMMENT ON FUNCTION claim_turns(text, text, text[], integer, bigint) IS 'Claim turns that are due, one of each second server.';

-- false: the lease is no longer ours, somebody else has taken over.
CREATE OR REPLACE FUNCTION renew_turn(p_process text, p_owner text, p_server text, p_lease_ms bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sync_leases SET lease_until_ms = now_ms() + p_lease_ms
    WHERE owner_login = p_owner AND server_login = p_server AND lease_owner = p_process;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION renew_turn(text, text, text, bigint) IS 'Hold a turn for longer.';

-- The end of a turn. p_complete: everything was seen, so refused items that did not come again are gone.
CREATE OR REPLACE FUNCTION finish_turn(p_process text, p_owner text, p_server text, p_moved bigint,
    p_result text, p_next_ms bigint, p_complete boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := now_ms();
    v_started bigint;
BEGIN
    UPDATE sync_leases SET finished_at_ms = v_now, moved = p_moved, result = p_result,
        due_at_ms = v_now + p_next_ms, lease_owner = NULL, lease_until_ms = NULL
    WHERE owner_login = p_owner AND server_login = p_server AND lease_owner = p_process
    RETURNING started_at_ms INTO v_started;
    IF FOUND AND p_complete THEN
        DELETE FROM dm_sync_rejects
        WHERE owner_login = p_owner AND peer = p_server AND last_seen_ms < v_started;
    END IF;
END $$;
COMMENT ON FUNCTION finish_turn(text, text, text, bigint, text, bigint, boolean) IS 'Record how a turn ended and when the next one is due.';
