-- What comes in pages of an owner's second server. accept_pairs(), apply_incoming() and
-- apply_tombstones() apply it like anything else, with p_history set. What is different then:
--
--   events    Nobody is told of single copies. The conversations that changed are noted in the owner's
--             head, and one event for all of a page follows (tell_history()).
--   rows      Nobody is contacted about what is an hour old: a delivery row is made only where the
--             message is known to be delivered, and one of an older revision goes.
--   fresh     Younger than an hour, it is no history for its recipient: his copy is told and pushed, and
--             the delivery row takes up the schedule where it stands.
--
-- The age is the time since the message, its edit or re-encryption was made, by the author's clock: it
-- is the only time that both servers know. Internal, but for tell_history().

-- Per item: younger than an hour. The revision is that of the first of its p_per copies.
CREATE OR REPLACE FUNCTION history_fresh(p_now bigint, p_time bigint[], p_per integer, p_rev bigint[],
                                         p_reenc bigint[]) RETURNS boolean[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(p_now - GREATEST(p_time[i], p_rev[(i - 1) * p_per + 1],
                                      p_reenc[(i - 1) * p_per + 1]) < 3600000 ORDER BY i)
    FROM generate_series(1, cardinality(p_time)) i
$$;
COMMENT ON FUNCTION history_fresh(bigint, bigint[], integer, bigint[], bigint[]) IS 'Which items of a page are younger than an hour; internal.';

-- Where the schedule of each item began, and the latest attempt whose time has come.
CREATE OR REPLACE FUNCTION history_schedule(p_now bigint, p_time bigint[], p_per integer,
    p_rev bigint[], p_reenc bigint[], OUT o_accepted bigint[], OUT o_slot smallint[])
LANGUAGE sql STABLE AS $$
    SELECT array_agg(at ORDER BY i),
           array_agg((SELECT count(*) FROM unnest(delivery_schedule()) o WHERE o <= p_now - at)::smallint
                     ORDER BY i)
    FROM (SELECT i, LEAST(p_now, GREATEST(p_time[i], p_rev[(i - 1) * p_per + 1],
                                          p_reenc[(i - 1) * p_per + 1])) AS at
          FROM generate_series(1, cardinality(p_time)) i) x
$$;
COMMENT ON FUNCTION history_schedule(bigint, bigint[], integer, bigint[], bigint[]) IS 'Acceptance and next attempt of items that come in pages; internal.';

-- Of the owners who would be told of copies (o_tell of apply_copies()), those who still are: recipients
-- of fresh items. For the others the conversation is noted in their heads, which the caller holds.
CREATE OR REPLACE FUNCTION history_noted(p_tell text[], p_fresh boolean[], p_from text[], p_to text[])
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_per integer := cardinality(p_tell) / cardinality(p_from);
    v_tell text[];
    v_owner text[];
    v_with text[];
BEGIN
    SELECT array_agg(CASE WHEN NOT old THEN p_tell[c] END ORDER BY c),
           array_agg(p_tell[c]) FILTER (WHERE old),
           array_agg(CASE nth WHEN 0 THEN p_from[i] ELSE p_to[i] END) FILTER (WHERE old)
    INTO v_tell, v_owner, v_with
    FROM (SELECT c, i, nth, p_tell[c] IS NOT NULL AND NOT (nth = 0 AND p_fresh[i]) AS old
          FROM (SELECT c, (c + v_per - 1) / v_per AS i, (c - 1) % v_per AS nth
                FROM generate_series(1, cardinality(p_tell)) c) y) x;
    IF v_owner IS NOT NULL THEN
        UPDATE user_event_heads h SET history_with = ARRAY(
            SELECT DISTINCT w FROM unnest(h.history_with || x.partners) w ORDER BY w)
        FROM (SELECT v_owner[s] AS owner, array_agg(DISTINCT v_with[s]) AS partners
              FROM generate_series(1, cardinality(v_owner)) s GROUP BY 1) x
        WHERE h.owner_login = x.owner;
    END IF;
    RETURN v_tell;
END $$;
COMMENT ON FUNCTION history_noted(text[], boolean[], text[], text[]) IS 'Note conversations whose history changed; internal.';

-- At the end of a page: one event for each of these owners whose history changed, and the positions.
-- p_owners NULL: for whoever is left over from a puller that was killed, some at a time.
CREATE OR REPLACE FUNCTION tell_history(p_me text, p_process text, p_owners text[])
RETURNS TABLE (owner_login text, pts bigint, elsewhere boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_owners text[] := coalesce(p_owners, ARRAY(
        SELECT h.owner_login FROM user_event_heads h WHERE h.history_with IS NOT NULL
        ORDER BY h.owner_login LIMIT 50));
    v_with text[];
    v_pts bigint[];
    v_live text[];
BEGIN
    PERFORM lock_heads(p_me, v_owners);
    v_now := now_ms();
    SELECT array_agg(h.owner_login::text ORDER BY h.owner_login),
           array_agg(array_to_string(h.history_with, ',') ORDER BY h.owner_login)
    INTO v_owners, v_with
    FROM user_event_heads h WHERE h.owner_login = ANY (v_owners) AND h.history_with IS NOT NULL;
    IF v_owners IS NULL THEN
        RETURN;
    END IF;
    v_pts := append_events(v_now, v_owners, array_fill(4::smallint, ARRAY[cardinality(v_owners)]), v_with);
    UPDATE user_event_heads h SET history_with = NULL WHERE h.owner_login = ANY (v_owners);
    v_live := live_processes(v_now);
    RETURN QUERY
    SELECT v_owners[i], v_pts[i], EXISTS (
        SELECT FROM active_sessions s WHERE s.login = v_owners[i] AND s.connected_to = ANY (v_live)
                                        AND s.connected_to <> p_process)
    FROM generate_series(1, cardinality(v_owners)) i;
END $$;
COMMENT ON FUNCTION tell_history(text, text, text[]) IS 'Append the events that tell owners of changed history.';

-- Note items of p_peer that were not taken, with the reason.
CREATE OR REPLACE FUNCTION note_sync_rejects(p_owner text, p_peer text, p_sync_id text[],
                                             p_reason text[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO dm_sync_rejects AS r (owner_login, sync_id, peer, reason, first_seen_ms, last_seen_ms,
                                      count)
    SELECT p_owner, sync_id, p_peer, max(reason), n.now, n.now, 1
    FROM unnest(p_sync_id, p_reason) x(sync_id, reason), (SELECT now_ms() AS now OFFSET 0) n
    GROUP BY sync_id, n.now ORDER BY sync_id
    ON CONFLICT (owner_login, sync_id) DO UPDATE SET peer = excluded.peer, reason = excluded.reason,
        last_seen_ms = excluded.last_seen_ms, count = r.count + 1
$$;
COMMENT ON FUNCTION note_sync_rejects(text, text, text[], text[]) IS 'Record items of a second server that were refused.';
