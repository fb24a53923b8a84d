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

-- The same for functions that take many items and may go on without some of them. o_busy is NULL once
-- all heads are locked. If the setting shine.heads is 'skip' (for the transaction), nothing is waited
-- for: the heads that somebody else holds are returned, the others are locked, and the caller does
-- the items that need none of the busy ones.
--
-- So one head that is held for long (an operator's open transaction, a process that was frozen) does
-- not keep a batch that happens to touch it: the batch waits once, for lock_timeout, fails, and comes
-- again with 'skip' (db/batch.h).
CREATE OR REPLACE FUNCTION take_heads(p_me text, p_logins text[], OUT o_busy text[],
                                      OUT o_tombstones boolean, OUT o_marks boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_held text[];
BEGIN
    IF current_setting('shine.heads', true) = 'skip' THEN
        SELECT array_agg(owner_login) INTO v_held FROM (
            SELECT h.owner_login FROM user_event_heads h WHERE h.owner_login = ANY (p_logins)
            ORDER BY h.owner_login FOR NO KEY UPDATE SKIP LOCKED) x;
        SELECT array_agg(h.owner_login) INTO o_busy FROM user_event_heads h
        WHERE h.owner_login = ANY (p_logins) AND NOT h.owner_login = ANY (coalesce(v_held, '{}'));
        IF o_busy IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    SELECT l.o_tombstones, l.o_marks INTO o_tombstones, o_marks FROM lock_heads(p_me, p_logins) l;
END $$;
COMMENT ON FUNCTION take_heads(text, text[]) IS 'Lock the heads of a batch; with shine.heads = skip returns those that somebody else holds instead of waiting.';

-- Numbers, from 1, of the items that have nothing to do with `p_busy`; {} if there is none.
CREATE OR REPLACE FUNCTION items_without(p_busy text[], p_from text[], p_to text[])
RETURNS integer[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(i ORDER BY i), '{}') FROM generate_series(1, cardinality(p_from)) i
    WHERE NOT p_from[i] COLLATE "C" = ANY (p_busy) AND NOT p_to[i] COLLATE "C" = ANY (p_busy)
$$;
COMMENT ON FUNCTION items_without(text[], text[], text[]) IS 'Items of a batch that touch none of these heads; internal.';

-- The elements of `p_all` that belong to these items, p_per of them to each; {} stays {}.
CREATE OR REPLACE FUNCTION pick(p_all anyarray, p_items integer[], p_per integer DEFAULT 1)
RETURNS anyarray LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_all = '{}' THEN p_all
                ELSE array_agg(p_all[(p_items[o] - 1) * p_per + nth] ORDER BY o, nth) END
    FROM generate_series(1, cardinality(p_items)) o, generate_series(1, p_per) nth
$$;
COMMENT ON FUNCTION pick(anyarray, integer[], integer) IS 'Some items of the parallel arrays of a batch; internal.';

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
