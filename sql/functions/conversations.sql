-- The list of a user's conversations.

-- One page, newest first by (last_time_ms, with_login). p_before_time -1 = from the newest; otherwise
-- what is before (p_before_time, p_before_with). At most p_limit items and p_max_bytes of blobs, but at
-- least one; `more` says whether older ones exist. Conversations without a text are not listed.
--
-- All rows of the owner are read and the newest sorted out: cheaper than an index that every message
-- would have to keep up.
CREATE OR REPLACE FUNCTION list_conversations(p_owner text, p_limit integer, p_before_time bigint,
    p_before_with text, p_max_bytes bigint)
RETURNS TABLE (with_login text, last_time_ms bigint, unread_count bigint, last_read_at_ms bigint,
    message_key text, base_key text, from_login text, to_login text, message_type integer,
    time_ms bigint, nonce bigint, revision_time_ms bigint, reencrypted_at_ms bigint,
    created_at_ms bigint, read_at_ms bigint, delivery_state text, blob bytea, more boolean)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT v.with_login, v.last_message_key, v.last_time_ms, v.unread_count, v.last_read_at_ms
        FROM conversations v
        WHERE v.owner_login = p_owner AND v.last_message_key IS NOT NULL
          AND (v.last_time_ms, v.with_login) <
              (CASE WHEN p_before_time < 0 THEN 9223372036854775807 ELSE p_before_time END,
               p_before_with COLLATE "C")
        ORDER BY v.last_time_ms DESC, v.with_login DESC
        LIMIT p_limit + 1),
    kept AS (
        SELECT p.*, row_number() OVER w AS n, sum(octet_length(m.blob)) OVER w AS total,
               count(*) OVER () AS found
        FROM page p
        CROSS JOIN LATERAL (SELECT x.blob FROM signed_messages x
                            WHERE x.owner_login = p_owner AND x.message_key = p.last_message_key
                            OFFSET 0) m
        WINDOW w AS (ORDER BY p.last_time_ms DESC, p.with_login DESC))
    SELECT k.with_login::text, k.last_time_ms, k.unread_count::bigint, k.last_read_at_ms,
           m.message_key::text, m.base_key::text, m.from_login::text, m.to_login::text,
           m.message_type::integer, m.time_ms, m.nonce, m.revision_time_ms, m.reencrypted_at_ms,
           m.created_at_ms, m.read_at_ms, CASE WHEN m.message_type = 2 THEN d.state::text END, m.blob,
           k.n < k.found
    FROM kept k
    CROSS JOIN LATERAL (SELECT * FROM signed_messages x
                        WHERE x.owner_login = p_owner AND x.message_key = k.last_message_key
                        OFFSET 0) m
    LEFT JOIN dm_delivery_state d ON m.message_type = 2 AND d.from_login = m.from_login
                                 AND d.outgoing_key = m.message_key
    WHERE k.n <= p_limit AND (k.n = 1 OR k.total <= p_max_bytes)
    ORDER BY k.n;
END $$;
COMMENT ON FUNCTION list_conversations(text, integer, bigint, text, bigint) IS 'One page of a user''s conversations, newest first, with their last texts.';
