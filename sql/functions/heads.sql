-- The lock order of every function that writes for a served owner, and the event log.

-- Lock the heads of those of `p_logins` (any order, repeats allowed) that have or need one.
--
-- A head exists for everybody who ever was served here. Missing ones of users served now are
-- created first, in order, by a statement that holds no lock on an existing head; only then are all
-- locked, in order. Nobody can hold a head and wait for one that is being created: he would have
-- missed it too and waited before taking his first lock. So two callers cannot deadlock, however
-- their logins overlap. Take it before reading anything that the writes depend on.
--
-- Every caller carries the same planner settings (SET … on the function): plans are cached per
-- session by whoever calls first, for tables that may have been empty then, and must be index
-- look-ups for ever. What the settings rule out are plans that read whole tables or that join the
-- batch in a way that costs more per item the more items there are.
-- Returned: whether any of them holds tombstones, and whether any may have read marks waiting. Texts
-- are covered by what either party holds, and one of the two is always served here, so who locks the
-- heads of both knows for sure that nothing is to be looked for.
CREATE OR REPLACE FUNCTION lock_heads(p_me text, p_logins text[], OUT o_tombstones boolean,
                                      OUT o_marks boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_logins text[];
    v_found bigint;
BEGIN
    SELECT array_agg(DISTINCT l COLLATE "C" ORDER BY l COLLATE "C") INTO v_logins
    FROM unnest(p_logins) l WHERE l IS NOT NULL;
    SELECT count(*) INTO v_found
    FROM unnest(v_logins) l JOIN user_event_heads h ON h.owner_login = l;
    IF v_found < cardinality(v_logins) THEN
        INSERT INTO user_event_heads (owner_login, has_marks)
        SELECT l, EXISTS (SELECT FROM read_marks r WHERE r.owner_login = l) FROM unnest(v_logins) l
        WHERE NOT EXISTS (SELECT FROM user_event_heads h WHERE h.owner_login = l)
          AND EXISTS (SELECT FROM user_access_servers_current a
                      WHERE a.login = l AND a.server_login = p_me)
        ORDER BY l COLLATE "C"
        ON CONFLICT DO NOTHING;
    END IF;
    SELECT coalesce(bool_or(has_tombstones), false), coalesce(bool_or(has_marks), false)
    INTO o_tombstones, o_marks
    FROM (SELECT h.has_tombstones, h.has_marks
          FROM unnest(v_logins) l JOIN user_event_heads h ON h.owner_login = l
          ORDER BY h.owner_login FOR NO KEY UPDATE OF h) x;
END $$;
COMMENT ON FUNCTION lock_heads(text, text[]) IS 'Lock the event heads of these logins, sorted; the first thing every writer does.';

-- Append one event per slot whose owner is not NULL; slots of one owner get positions in slot
-- order. p_kind NULL = all of kind 1. Returns the position per slot, 0 where there is no event. The
-- caller holds the heads.
CREATE OR REPLACE FUNCTION append_events(p_now bigint, p_owner text[], p_kind smallint[],
                                         p_key text[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_pts bigint[];
BEGIN
    SELECT array_agg(pts) INTO v_pts FROM (
        SELECT coalesce(h.last_pts + row_number() OVER (PARTITION BY h.owner_login ORDER BY s), 0) AS pts
        FROM generate_series(1, cardinality(p_owner)) s
        LEFT JOIN user_event_heads h ON h.owner_login = p_owner[s]
        ORDER BY s) x;
    INSERT INTO user_events (owner_login, pts, kind, message_key, created_at_ms)
    SELECT p_owner[s], v_pts[s], coalesce(p_kind[s], 1), p_key[s], p_now
    FROM generate_series(1, cardinality(p_owner)) s WHERE v_pts[s] > 0;
    UPDATE user_event_heads h SET last_pts = x.pts
    FROM (SELECT p_owner[s] AS owner_login, max(v_pts[s]) AS pts
          FROM generate_series(1, cardinality(p_owner)) s WHERE v_pts[s] > 0 GROUP BY 1) x
    WHERE h.owner_login = x.owner_login;
    RETURN v_pts;
END $$;
COMMENT ON FUNCTION append_events(bigint, text[], smallint[], text[]) IS 'Append events to the logs of owners whose heads the caller holds; internal.';
