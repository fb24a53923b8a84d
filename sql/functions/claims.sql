-- Work taken with a lease: delivery rows that are due, and outbox items to be pushed.
--
-- Claims take no head and wait for nobody: what is locked is somebody's work already. A row that ten
-- leases in a row ran out on is set aside: it may be what kills its worker, so it comes alone.

-- Due rows by the time they became due. p_skip: peers (route_hint) whose rows stay. The
-- last row has no login: it says whether there are more, and when the next one is due. p_schedule NULL = the default one.
CREATE OR REPLACE FUNCTION claim_due(p_me text, p_process text, p_max integer, p_bytes bigint,
    p_lease bigint, p_skip text[], p_schedule bigint[] DEFAULT NULL)
RETURNS TABLE (from_login text, to_login text, outgoing_key text, incoming_key text,
    revision_time_ms bigint, reencrypted_at_ms bigint, row_version bigint, attempt integer,
    accepted_ago bigint, claims integer, message_type integer, blob bytea,
    route1 text, url1 text, route2 text, url2 text, served_here boolean,
    second text, second_url text, more boolean, next_due bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
-- The order comes from the indexes, also in plans that were made while the table was empty.
SET enable_sort = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := now_ms();
    v_schedule bigint[] := coalesce(p_schedule, delivery_schedule());
    v_peers text[];
    v_from text[]; v_key text[]; v_due bigint[];
    v_taken integer := 0; v_found integer := 0; v_part integer; v_full boolean := false;
    v_next bigint; v_later bigint;
BEGIN
    IF cardinality(p_skip) > 0 THEN
        -- The peers that rows wait for, each found from the one before, with the first row of each.
        WITH RECURSIVE peers AS (
            (SELECT d.route_hint, GREATEST(d.next_attempt_at_ms, d.lease_until_ms) AS due
             FROM dm_delivery_state d WHERE d.state = 'accepted' AND d.claims < 10
             ORDER BY d.route_hint, GREATEST(d.next_attempt_at_ms, d.lease_until_ms) LIMIT 1)
            UNION ALL
            SELECT n.route_hint, n.due FROM peers p CROSS JOIN LATERAL (
                SELECT d.route_hint, GREATEST(d.next_attempt_at_ms, d.lease_until_ms) AS due
                FROM dm_delivery_state d
                WHERE d.state = 'accepted' AND d.claims < 10 AND d.route_hint > p.route_hint
                ORDER BY d.route_hint, GREATEST(d.next_attempt_at_ms, d.lease_until_ms) LIMIT 1) n)
        SELECT coalesce(array_agg(p.route_hint ORDER BY p.due) FILTER (WHERE p.due <= v_now), '{}'),
               min(p.due) FILTER (WHERE p.due > v_now)
        INTO v_peers, v_next
        FROM peers p WHERE NOT p.route_hint = ANY (p_skip);
        -- An equal part of what is left for each, whoever waits longest first. Only what is taken is
        -- locked: to lock a batch of every peer and then choose would write to thousands of rows.
        FOR i IN 1 .. cardinality(v_peers) LOOP
            v_part := ceil((p_max - v_found)::numeric / (cardinality(v_peers) - i + 1));
            SELECT v_from || array_agg(x.from_login), v_key || array_agg(x.outgoing_key),
                   v_due || array_agg(x.due), v_found + count(*), v_full OR count(*) = v_part
            INTO v_from, v_key, v_due, v_found, v_full
            FROM (
                SELECT d.from_login, d.outgoing_key,
                       GREATEST(d.next_attempt_at_ms, d.lease_until_ms) AS due
                FROM dm_delivery_state d
                -- As a range and in this order it can come from the index by peer only.
                WHERE d.state = 'accepted' AND d.route_hint >= v_peers[i]
                  AND d.route_hint <= v_peers[i] AND d.claims < 10
                  AND GREATEST(d.next_attempt_at_ms, d.lease_until_ms) <= v_now
                ORDER BY d.route_hint, GREATEST(d.next_attempt_at_ms, d.lease_until_ms)
                LIMIT v_part FOR NO KEY UPDATE SKIP LOCKED) x;
            EXIT WHEN v_found >= p_max;
        END LOOP;
        SELECT array_agg(v_from[i] ORDER BY v_due[i], i), array_agg(v_key[i] ORDER BY v_due[i], i)
        INTO v_from, v_key FROM generate_series(1, v_found) i;
    ELSE
        SELECT array_agg(x.from_login), array_agg(x.outgoing_key), count(*) = p_max
        INTO v_from, v_key, v_full
        FROM (
            SELECT d.from_login, d.outgoing_key
            FROM dm_delivery_state d
            WHERE d.state = 'accepted' AND d.claims < 10
              AND GREATEST(d.next_attempt_at_ms, d.lease_until_ms) <= v_now
            ORDER BY GREATEST(d.next_attempt_at_ms, d.lease_until_ms)
            LIMIT p_max FOR NO KEY UPDATE SKIP LOCKED) x;
    END IF;
    -- One that was set aside, if there is nothing else, once in ten minutes.
    IF v_key IS NULL THEN
        SELECT ARRAY[x.from_login], ARRAY[x.outgoing_key] INTO v_from, v_key
        FROM (
            SELECT d.from_login, d.outgoing_key FROM dm_delivery_state d
            WHERE d.state = 'accepted' AND d.claims >= 10 AND NOT d.route_hint = ANY (p_skip)
              AND GREATEST(d.next_attempt_at_ms, d.lease_until_ms) <= v_now
              AND coalesce(d.lease_until_ms, 0) <= v_now - 600000
            ORDER BY GREATEST(d.next_attempt_at_ms, d.lease_until_ms)
            LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) x;
    END IF;
    v_found := coalesce(cardinality(v_key), 0);

    FOR from_login, to_login, outgoing_key, incoming_key, revision_time_ms, reencrypted_at_ms,
        row_version, attempt, accepted_ago, claims, message_type, blob, route1, url1, route2, url2,
        served_here, second, second_url IN
        WITH fits AS MATERIALIZED (
            SELECT x.i, x.message_type, x.blob FROM (
                SELECT i, m.message_type, m.blob,
                       sum(coalesce(octet_length(m.blob), 0)) OVER (ORDER BY i) AS bytes
                FROM generate_series(1, v_found) i
                JOIN dm_delivery_state d ON d.from_login = v_from[i] AND d.outgoing_key = v_key[i]
                LEFT JOIN LATERAL (
                    SELECT m.message_type, m.blob FROM signed_messages m
                    WHERE m.owner_login IN (d.to_login, d.from_login)
                      AND m.message_key = d.incoming_key LIMIT 1) m ON true) x
            WHERE x.bytes <= p_bytes OR x.i = 1),
        got AS (
            UPDATE dm_delivery_state d SET
                lease_owner = p_process, lease_until_ms = v_now + p_lease,
                claims = CASE WHEN d.lease_owner IS NULL THEN d.claims ELSE d.claims + 1 END,
                -- The latest slot that has passed; those that were missed are not made.
                attempt_no = LEAST(cardinality(v_schedule), GREATEST(d.attempt_no,
                    (SELECT count(*) FROM unnest(v_schedule) o WHERE d.accepted_at_ms + o <= v_now))),
                row_version = d.row_version + 1
            FROM fits f
            WHERE d.from_login = v_from[f.i] AND d.outgoing_key = v_key[f.i]
            RETURNING f.i, d.from_login, d.to_login, d.outgoing_key, d.incoming_key,
                d.revision_time_ms, d.reencrypted_at_ms, d.row_version, d.attempt_no,
                d.accepted_at_ms, d.claims, f.message_type, f.blob)
        SELECT g.from_login, g.to_login, g.outgoing_key, g.incoming_key, g.revision_time_ms,
               g.reencrypted_at_ms, g.row_version, g.attempt_no, v_now - g.accepted_at_ms, g.claims,
               g.message_type, g.blob,
               CASE WHEN t1.server_login <> p_me THEN t1.server_login END, t1.url,
               CASE WHEN t2.server_login <> p_me THEN t2.server_login END, t2.url,
               coalesce(t1.server_login = p_me, false) OR coalesce(t2.server_login = p_me, false),
               CASE p_me WHEN f1.server_login THEN f2.server_login
                         WHEN f2.server_login THEN f1.server_login END,
               CASE p_me WHEN f1.server_login THEN f2.url WHEN f2.server_login THEN f1.url END
        FROM got g
        LEFT JOIN user_access_servers_current t1 ON t1.login = g.to_login AND t1.slot = 1
        LEFT JOIN user_access_servers_current t2 ON t2.login = g.to_login AND t2.slot = 2
        LEFT JOIN user_access_servers_current f1 ON f1.login = g.from_login AND f1.slot = 1
        LEFT JOIN user_access_servers_current f2 ON f2.login = g.from_login AND f2.slot = 2
        ORDER BY g.i
    LOOP
        v_taken := v_taken + 1;
        RETURN NEXT;
    END LOOP;

    -- Until the next one that nobody holds; nothing of peers that are left out.
    IF cardinality(p_skip) > 0 THEN
        SELECT min(d.due) INTO v_later FROM unnest(v_peers) p CROSS JOIN LATERAL (
            SELECT GREATEST(d.next_attempt_at_ms, d.lease_until_ms) AS due FROM dm_delivery_state d
            WHERE d.state = 'accepted' AND d.route_hint >= p AND d.route_hint <= p
              AND d.claims < 10
            ORDER BY d.route_hint, GREATEST(d.next_attempt_at_ms, d.lease_until_ms) LIMIT 1) d;
        v_next := LEAST(v_next, v_later);
    ELSE
        SELECT GREATEST(d.next_attempt_at_ms, d.lease_until_ms) INTO v_next
        FROM dm_delivery_state d WHERE d.state = 'accepted' AND d.claims < 10
        ORDER BY GREATEST(d.next_attempt_at_ms, d.lease_until_ms) LIMIT 1;
    END IF;
    from_login := NULL;
    more := v_full OR v_taken < v_found;
    next_due := CASE WHEN v_next IS NULL THEN -1 ELSE GREATEST(v_next - v_now, 0) END;
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION claim_due(text, text, integer, bigint, bigint, text[], bigint[]) IS 'Lease delivery rows that are due; the last row, without a login, says when the next is.';

-- Outbox items whose push is due. p_skip: second servers that are at their bound. A pair gives its
-- incoming copy first. The last row, without an owner, is as in claim_due().
CREATE OR REPLACE FUNCTION claim_pushes(p_me text, p_process text, p_max integer, p_bytes bigint,
    p_lease bigint, p_skip text[])
RETURNS TABLE (owner_login text, primary_key text, sync_id text, row_version bigint, tries integer,
    second text, second_url text, type1 integer, blob1 bytea, type2 integer, blob2 bytea,
    more boolean, next_due bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
-- The order comes from the indexes, also in plans that were made while the table was empty.
SET enable_sort = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := now_ms();
    v_owner text[]; v_key text[]; v_second text[]; v_url text[];
    v_taken integer := 0; v_found integer; v_next bigint;
BEGIN
    SELECT array_agg(x.owner_login), array_agg(x.primary_message_key), array_agg(x.server_login),
           array_agg(x.url)
    INTO v_owner, v_key, v_second, v_url
    FROM (
        SELECT o.owner_login, o.primary_message_key, a.server_login, a.url
        FROM dm_sync_outbox o
        LEFT JOIN LATERAL (
            SELECT a.server_login, a.url FROM user_access_servers_current a
            WHERE a.login = o.owner_login AND a.server_login <> p_me ORDER BY a.slot LIMIT 1) a ON true
        WHERE o.push_due_at_ms IS NOT NULL
          AND GREATEST(o.push_due_at_ms, o.lease_until_ms) <= v_now
          AND NOT coalesce(a.server_login = ANY (p_skip), false)
        ORDER BY GREATEST(o.push_due_at_ms, o.lease_until_ms)
        LIMIT p_max FOR NO KEY UPDATE OF o SKIP LOCKED) x;
    v_found := coalesce(cardinality(v_key), 0);
    FOR owner_login, primary_key, sync_id, row_version, tries, second, second_url, type1, blob1,
        type2, blob2 IN
        WITH fits AS MATERIALIZED (
            SELECT * FROM (
                SELECT i, a.message_type AS type1, a.blob AS blob1, m.message_type AS type2,
                       m.blob AS blob2, sum(coalesce(octet_length(m.blob), 0)
                                            + coalesce(octet_length(a.blob), 0)) OVER (ORDER BY i) AS bytes
                FROM generate_series(1, v_found) i
                LEFT JOIN signed_messages m ON m.owner_login = v_owner[i] AND m.message_key = v_key[i]
                LEFT JOIN LATERAL (
                    SELECT a.message_type, a.blob FROM signed_messages a
                    WHERE m.message_type IN (2, 4) AND a.owner_login = m.to_login
                      AND a.message_key = m.base_key || '|' || (m.message_type - 1)) a ON true) x
            WHERE x.bytes <= p_bytes OR x.i = 1),
        got AS (
            UPDATE dm_sync_outbox o SET lease_owner = p_process, lease_until_ms = v_now + p_lease,
                row_version = o.row_version + 1
            FROM fits f
            WHERE o.owner_login = v_owner[f.i] AND o.primary_message_key = v_key[f.i]
            RETURNING f.*, o.owner_login, o.primary_message_key, o.sync_id, o.row_version,
                o.push_tries)
        SELECT g.owner_login, g.primary_message_key, g.sync_id, g.row_version, g.push_tries,
               v_second[g.i], v_url[g.i], g.type1, g.blob1, g.type2, g.blob2
        FROM got g ORDER BY g.i
    LOOP
        v_taken := v_taken + 1;
        RETURN NEXT;
    END LOOP;
    SELECT GREATEST(o.push_due_at_ms, o.lease_until_ms) INTO v_next
    FROM dm_sync_outbox o WHERE o.push_due_at_ms IS NOT NULL
      AND GREATEST(o.push_due_at_ms, o.lease_until_ms) > v_now
    ORDER BY GREATEST(o.push_due_at_ms, o.lease_until_ms) LIMIT 1;
    owner_login := NULL;
    more := v_found = p_max OR v_taken < v_found;
    next_due := coalesce(v_next - v_now, -1);
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION claim_pushes(text, text, integer, bigint, bigint, text[]) IS 'Lease outbox items whose push is due; the last row, without an owner, says when the next is.';

-- p_outcome: 1 acknowledged, 2 failed, 3 given back. An acknowledgement of the current sync_id holds
-- whoever has the row; it makes the owner's other items due that failed before.
CREATE OR REPLACE FUNCTION finish_pushes(p_process text, p_owner text[], p_key text[],
    p_sync_id text[], p_version bigint[], p_outcome integer[], p_retry_after bigint[])
RETURNS TABLE (ord integer, recorded boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_n integer := cardinality(p_key);
    v_done integer[];
BEGIN
    PERFORM FROM generate_series(1, v_n) i
    JOIN dm_sync_outbox o ON o.owner_login = p_owner[i] AND o.primary_message_key = p_key[i]
    ORDER BY o.owner_login, o.primary_message_key FOR NO KEY UPDATE OF o;
    v_now := now_ms();
    WITH done AS (
        UPDATE dm_sync_outbox o SET
            synced = o.synced OR p_outcome[i] = 1,
            push_tries = CASE WHEN p_outcome[i] = 2 THEN o.push_tries + 1 ELSE o.push_tries END,
            push_due_at_ms = CASE WHEN o.synced THEN NULL ELSE CASE p_outcome[i]
                WHEN 2 THEN v_now + ('{30000,300000,1500000,3600000}'::bigint[])[o.push_tries + 1]
                WHEN 3 THEN v_now + LEAST(GREATEST(p_retry_after[i], 0), 60000) END END,
            lease_owner = NULL, lease_until_ms = NULL, row_version = o.row_version + 1
        FROM generate_series(1, v_n) i
        WHERE o.owner_login = p_owner[i] AND o.primary_message_key = p_key[i]
          AND o.sync_id = p_sync_id[i]
          AND (p_outcome[i] = 1 OR (o.row_version = p_version[i] AND o.lease_owner = p_process
                                    AND o.lease_until_ms > v_now))
        RETURNING i)
    SELECT coalesce(array_agg(i), '{}') INTO v_done FROM done;
    UPDATE dm_sync_outbox o SET push_due_at_ms = v_now, row_version = o.row_version + 1
    FROM (SELECT o.owner_login, o.primary_message_key
          FROM (SELECT DISTINCT p_owner[i] COLLATE "C" AS owner FROM generate_series(1, v_n) i
                WHERE p_outcome[i] = 1 AND i = ANY (v_done)) x
          JOIN dm_sync_outbox o ON o.owner_login = x.owner AND NOT o.synced
          WHERE o.push_tries > 0 AND o.push_due_at_ms > v_now AND o.lease_owner IS NULL
          ORDER BY 1, 2 LIMIT 1000 FOR NO KEY UPDATE OF o SKIP LOCKED) y
    WHERE o.owner_login = y.owner_login AND o.primary_message_key = y.primary_message_key;
    RETURN QUERY SELECT i, i = ANY (v_done) FROM generate_series(1, v_n) i;
END $$;
COMMENT ON FUNCTION finish_pushes(text, text[], text[], text[], bigint[], integer[], bigint[]) IS 'Record the results of pushes, one row per item.';

-- Give back what a process holds, due at once. p_lease: how long its leases are at most. They end
-- between now and then, so a range of the due indexes has them.
CREATE OR REPLACE FUNCTION release_claims(p_process text, p_lease bigint) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_now bigint := now_ms();
BEGIN
    UPDATE dm_delivery_state d SET lease_owner = NULL, lease_until_ms = NULL, claims = 0,
        next_attempt_at_ms = LEAST(d.next_attempt_at_ms, v_now), row_version = d.row_version + 1,
        updated_at_ms = v_now
    FROM (SELECT from_login, outgoing_key FROM dm_delivery_state
          WHERE state = 'accepted' AND lease_owner = p_process
            AND GREATEST(next_attempt_at_ms, lease_until_ms) BETWEEN v_now AND v_now + p_lease
          ORDER BY from_login, outgoing_key FOR NO KEY UPDATE) x
    WHERE d.from_login = x.from_login AND d.outgoing_key = x.outgoing_key;
    UPDATE dm_sync_outbox o SET lease_owner = NULL, lease_until_ms = NULL,
        row_version = o.row_version + 1
    FROM (SELECT owner_login, primary_message_key FROM dm_sync_outbox
          WHERE push_due_at_ms IS NOT NULL AND lease_owner = p_process
            AND GREATEST(push_due_at_ms, lease_until_ms) BETWEEN v_now AND v_now + p_lease
          ORDER BY owner_login, primary_message_key FOR NO KEY UPDATE) x
    WHERE o.owner_login = x.owner_login AND o.primary_message_key = x.primary_message_key;
END $$;
COMMENT ON FUNCTION release_claims(text, bigint) IS 'Give back all that a process holds of delivery rows and outbox items.';

-- An operator has looked at a row that was set aside: it is due at once, like any other. NULL = no such
-- row, false = it was not set aside, and nothing was changed. A row that somebody works on stays his.
CREATE OR REPLACE FUNCTION release_delivery(p_from text, p_key text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := now_ms();
    d dm_delivery_state;
BEGIN
    SELECT * INTO d FROM dm_delivery_state x WHERE x.from_login = p_from AND x.outgoing_key = p_key
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF d.state <> 'accepted' OR d.claims < 10 THEN
        RETURN false;
    END IF;
    UPDATE dm_delivery_state x SET claims = 0
    WHERE x.from_login = p_from AND x.outgoing_key = p_key AND x.lease_until_ms > v_now;
    IF NOT FOUND THEN
        UPDATE dm_delivery_state x SET claims = 0, lease_owner = NULL, lease_until_ms = NULL,
            next_attempt_at_ms = LEAST(x.next_attempt_at_ms, v_now),
            row_version = x.row_version + 1, updated_at_ms = v_now
        WHERE x.from_login = p_from AND x.outgoing_key = p_key;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION release_delivery(text, text) IS 'Operator: let a row that was set aside (v_delivery_stuck) be claimed like any other again.';
