-- What clients read: the event log and the history of a conversation.

-- Events of several owners after a position each, in order of owner (as given) and position: at
-- most p_limit per owner, and per owner no more than p_max_bytes of blobs, but at least one. `more`:
-- further events of this owner wait behind the last one given. Owners with nothing new cost one
-- look at their head.
--
-- Kind 3, a setting: message_key is its name, `value` its value, `blob` its signature, time_ms its time.
-- Kind 4: message_key is the list of conversations whose history changed.
CREATE OR REPLACE FUNCTION events_since(p_owner text[], p_after bigint[], p_limit integer,
                                        p_max_bytes bigint)
RETURNS TABLE (ord integer, owner_login text, pts bigint, kind integer, more boolean,
    message_key text, base_key text, gone boolean, from_login text, to_login text,
    message_type integer, time_ms bigint, revision_time_ms bigint, reencrypted_at_ms bigint,
    delivery_state text, blob bytea, value text)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT i, h.owner_login::text, e.pts, e.kind::integer, e.pts < h.last_pts,
           e.message_key::text, left(e.message_key, -2)::text, e.gone,
           coalesce(e.from_login, split_part(e.message_key, '|', 1)),
           coalesce(e.to_login, split_part(e.message_key, '|', 2)),
           e.message_type::integer, e.time_ms, e.revision_time_ms, e.reencrypted_at_ms,
           CASE WHEN e.kind = 2 OR e.shows_state THEN d.state END, e.blob, e.value
    FROM generate_series(1, cardinality(p_owner)) i
    JOIN user_event_heads h ON h.owner_login = p_owner[i] AND h.last_pts > p_after[i]
    CROSS JOIN LATERAL (
        SELECT v.pts, v.kind, v.message_key, v.kind = 1 AND m.owner_login IS NULL AS gone,
               m.from_login, m.to_login,
               CASE WHEN v.kind < 3 THEN coalesce(m.message_type, right(v.message_key, 1)::smallint)
               END AS message_type, coalesce(m.time_ms, u.time_ms) AS time_ms, m.revision_time_ms,
               m.reencrypted_at_ms, coalesce(m.blob, u.signature) AS blob, u.value::text AS value,
               -- The author's copies: outgoing ones, and his tombstones for both.
               m.message_type IN (2, 4) OR m.message_type IN (5, 7) AND m.from_login = m.owner_login
               AS shows_state,
               sum(coalesce(octet_length(m.blob), octet_length(u.value))) OVER (ORDER BY v.pts)
               AS bytes,
               row_number() OVER (ORDER BY v.pts) AS n
        FROM (SELECT w.pts, w.kind, w.message_key FROM user_events w
              WHERE w.owner_login = p_owner[i] AND w.pts > p_after[i]
              ORDER BY w.pts LIMIT p_limit) v
        LEFT JOIN signed_messages m ON v.kind = 1 AND m.owner_login = p_owner[i]
                                   AND m.message_key = v.message_key AND NOT m.courier
        LEFT JOIN user_settings u ON v.kind = 3 AND u.login = p_owner[i]
                                 AND u.name = v.message_key) e
    LEFT JOIN dm_delivery_state d ON d.from_login = split_part(e.message_key, '|', 1)
        AND d.outgoing_key = e.message_key AND (e.kind = 2 OR e.shows_state)
    WHERE e.n = 1 OR coalesce(e.bytes, 0) <= p_max_bytes
    ORDER BY i, e.pts;
END $$;
COMMENT ON FUNCTION events_since(text[], bigint[], integer, bigint) IS 'Events of several owners after a position each, with the stored rows they refer to.';

-- One page of a conversation, newest first by (time_ms, message_key). p_before_time -1 = from the
-- newest; otherwise what is before (p_before_time, p_before_key). At most p_limit items and
-- p_max_bytes of blobs, but at least one; `more` says whether older ones exist.
CREATE OR REPLACE FUNCTION get_history(p_owner text, p_with text, p_limit integer,
    p_before_time bigint, p_before_key text, p_max_bytes bigint)
RETURNS TABLE (message_key text, base_key text, from_login text, to_login text,
    message_type integer, time_ms bigint, nonce bigint, revision_time_ms bigint,
    reencrypted_at_ms bigint, created_at_ms bigint, read_at_ms bigint, delivery_state text,
    blob bytea, more boolean)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT m.message_key, m.time_ms, octet_length(m.blob) AS bytes
        FROM signed_messages m
        WHERE m.owner_login = p_owner AND m.with_login = p_with
          AND m.message_type IN (1, 2) AND NOT m.courier
          AND (m.time_ms, m.message_key) <
              (CASE WHEN p_before_time < 0 THEN 9223372036854775807 ELSE p_before_time END,
               p_before_key COLLATE "C")
        ORDER BY m.time_ms DESC, m.message_key DESC
        LIMIT p_limit + 1),
    kept AS (
        SELECT p.message_key, p.time_ms,
               row_number() OVER w AS n, sum(p.bytes) OVER w AS total,
               count(*) OVER () AS found
        FROM page p WINDOW w AS (ORDER BY p.time_ms DESC, p.message_key DESC))
    SELECT m.message_key::text, m.base_key::text, m.from_login::text, m.to_login::text,
           m.message_type::integer, m.time_ms, m.nonce, m.revision_time_ms, m.reencrypted_at_ms,
           m.created_at_ms, m.read_at_ms,
           CASE WHEN m.message_type = 2 THEN d.state::text END, m.blob, k.n < k.found
    FROM kept k
    -- OFFSET 0: look the page's rows up, never the page in the owner's rows.
    CROSS JOIN LATERAL (SELECT * FROM signed_messages x
                        WHERE x.owner_login = p_owner AND x.message_key = k.message_key OFFSET 0) m
    LEFT JOIN dm_delivery_state d ON m.message_type = 2 AND d.from_login = m.from_login
                                 AND d.outgoing_key = m.message_key
    WHERE k.n <= p_limit AND (k.n = 1 OR k.total <= p_max_bytes)
    ORDER BY k.n;
END $$;
COMMENT ON FUNCTION get_history(text, text, integer, bigint, text, bigint) IS 'One page of a conversation, newest first.';
