-- What tombstones cover, and taking away what a new one covers. Internal; the caller holds the heads.

-- Which copies of containers of types 1 and 3 are covered: p_per elements for each (the recipient's,
-- then the author's). A text is covered by a tombstone for both that either party holds, and a copy by
-- a tombstone of its owner; a receipt copy is covered if the text copy that it references is, which
-- has the same owner. A courier copy belongs to nobody here yet: only what is for both covers it.
CREATE OR REPLACE FUNCTION covered_copies(p_per integer, p_to_served boolean[], p_from text[],
    p_to text[], p_base text[], p_type integer[], p_time bigint[], p_ref_time bigint[],
    p_ref_nonce bigint[]) RETURNS boolean[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT array_agg(coalesce(mo.for_both, false) OR coalesce(mp.for_both, false)
                         OR coalesce(GREATEST(co.both_until_ms, cp.both_until_ms) >= k.at, false)
                         OR k.here AND (mo.owner_login IS NOT NULL
                                        OR coalesce(co.own_until_ms >= k.at, false)) ORDER BY c)
        FROM generate_series(1, p_per * cardinality(p_type)) c
        CROSS JOIN LATERAL (SELECT
            CASE nth WHEN 0 THEN p_to[i] ELSE p_from[i] END AS owner,
            CASE nth WHEN 0 THEN p_from[i] ELSE p_to[i] END AS partner,
            nth = 1 OR p_to_served[i] AS here,
            CASE p_type[i] WHEN 3 THEN p_ref_time[c] ELSE p_time[i] END AS at,
            CASE p_type[i] WHEN 3 THEN p_to[i] || '|' || p_from[i] || '|' || p_ref_time[c] || '|' ||
                                       p_ref_nonce[c]
                           ELSE p_base[i] END AS base
            FROM (SELECT (c + p_per - 1) / p_per AS i, (c - 1) % p_per AS nth) y OFFSET 0) k
        LEFT JOIN message_tombstones mo ON mo.owner_login = k.owner AND mo.base_key = k.base
        LEFT JOIN message_tombstones mp ON mp.owner_login = k.partner AND mp.base_key = k.base
        LEFT JOIN conversation_tombstones co ON co.owner_login = k.owner AND co.with_login = k.partner
        LEFT JOIN conversation_tombstones cp ON cp.owner_login = k.partner
                                            AND cp.with_login = k.owner);
END $$;
COMMENT ON FUNCTION covered_copies(integer, boolean[], text[], text[], text[], integer[], bigint[], bigint[], bigint[]) IS 'Which copies tombstones cover; internal.';

-- Remember tombstones for the owners who hold them. One element per tombstone and holder: p_base the
-- text that is named, NULL for a conversation tombstone, whose time is p_until.
CREATE OR REPLACE FUNCTION record_tombstones(p_owner text[], p_with text[], p_both boolean[],
    p_base text[], p_until bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO message_tombstones AS t (owner_login, base_key, for_both)
    SELECT p_owner[s] COLLATE "C", p_base[s] COLLATE "C", bool_or(p_both[s])
    FROM generate_series(1, cardinality(p_owner)) s WHERE p_base[s] IS NOT NULL
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (owner_login, base_key) DO UPDATE SET for_both = true
        WHERE excluded.for_both AND NOT t.for_both;
    INSERT INTO conversation_tombstones AS t (owner_login, with_login, both_until_ms, own_until_ms)
    SELECT p_owner[s] COLLATE "C", p_with[s] COLLATE "C", max(p_until[s]) FILTER (WHERE p_both[s]),
           max(p_until[s]) FILTER (WHERE NOT p_both[s])
    FROM generate_series(1, cardinality(p_owner)) s WHERE p_base[s] IS NULL
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (owner_login, with_login) DO UPDATE SET
        both_until_ms = GREATEST(t.both_until_ms, excluded.both_until_ms),
        own_until_ms = GREATEST(t.own_until_ms, excluded.own_until_ms);
    UPDATE user_event_heads h SET has_tombstones = true
    FROM (SELECT DISTINCT o FROM unnest(p_owner) o) x
    WHERE h.owner_login = x.o AND NOT h.has_tombstones;
END $$;
COMMENT ON FUNCTION record_tombstones(text[], text[], boolean[], text[], bigint[]) IS 'Remember what tombstones cover; internal.';

-- Remove what new tombstones cover. Parameters as in record_tombstones, with one element per owner of
-- copies, whether or not he is served here (courier copies), and p_time, p_nonce, p_reader of the
-- text that is named.
--
-- A delivery row goes with the last of its two copies: then it has nothing left to carry. As long as
-- one is there, it stays as it is, so a tombstone of one party never touches a pending delivery.
CREATE OR REPLACE FUNCTION remove_covered(p_owner text[], p_with text[], p_both boolean[],
    p_base text[], p_until bigint[], p_time bigint[], p_nonce bigint[], p_reader text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_n integer := cardinality(p_owner);
    v_owner text[]; v_key text[]; v_base text[]; v_from text[]; v_type smallint[]; v_with text[];
    v_courier boolean[]; v_unread boolean[]; v_any boolean;
    v_d_from text[]; v_d_key text[];
BEGIN
    DELETE FROM read_marks r USING generate_series(1, v_n) s
    WHERE r.owner_login = p_owner[s] AND r.with_login = p_with[s]
      AND CASE WHEN p_base[s] IS NULL THEN r.time_ms <= p_until[s]
               ELSE r.time_ms = p_time[s] AND r.text_key IN (p_base[s] || '|1', p_base[s] || '|2') END;

    WITH victim AS MATERIALIZED (
        SELECT m.owner_login, m.message_key
        FROM generate_series(1, v_n) s, signed_messages m
        WHERE p_base[s] IS NOT NULL AND m.owner_login = p_owner[s]
          AND m.message_key = ANY (ARRAY[p_base[s] || '|1', p_base[s] || '|2'])
          AND (p_both[s] OR NOT m.courier)
        UNION
        SELECT m.owner_login, m.message_key
        FROM generate_series(1, v_n) s, signed_messages m
        WHERE p_base[s] IS NOT NULL AND m.owner_login = p_owner[s] AND m.with_login = p_with[s]
          AND m.message_type IN (3, 4) AND m.ref_time_ms = p_time[s] AND m.ref_nonce = p_nonce[s]
          AND m.from_login = p_reader[s] AND (p_both[s] OR NOT m.courier)
        UNION
        SELECT m.owner_login, m.message_key
        FROM generate_series(1, v_n) s, signed_messages m
        WHERE p_base[s] IS NULL AND m.owner_login = p_owner[s] AND m.with_login = p_with[s]
          AND m.message_type IN (1, 2) AND NOT m.courier AND m.time_ms <= p_until[s]
        UNION
        SELECT m.owner_login, m.message_key
        FROM generate_series(1, v_n) s, signed_messages m
        WHERE p_base[s] IS NULL AND p_both[s] AND m.owner_login = p_owner[s] AND m.with_login = p_with[s]
          AND m.message_type = 1 AND m.courier AND m.time_ms <= p_until[s]
        UNION
        SELECT m.owner_login, m.message_key
        FROM generate_series(1, v_n) s, signed_messages m
        WHERE p_base[s] IS NULL AND m.owner_login = p_owner[s] AND m.with_login = p_with[s]
          AND m.message_type IN (3, 4) AND m.ref_time_ms <= p_until[s] AND (p_both[s] OR NOT m.courier)),
    gone AS (
        DELETE FROM signed_messages m USING victim v
        WHERE m.owner_login = v.owner_login AND m.message_key = v.message_key
        RETURNING m.owner_login, m.message_key, m.base_key, m.from_login, m.message_type, m.with_login,
            m.courier, m.message_type = 1 AND NOT m.courier AND m.read_at_ms IS NULL
                       AND m.from_login <> m.to_login AS unread)
    SELECT array_agg(owner_login), array_agg(message_key), array_agg(base_key), array_agg(from_login),
           array_agg(message_type), array_agg(with_login), array_agg(courier), array_agg(unread),
           count(*) > 0
    INTO v_owner, v_key, v_base, v_from, v_type, v_with, v_courier, v_unread, v_any
    FROM gone;
    IF NOT v_any THEN
        RETURN;
    END IF;

    UPDATE conversations v SET unread_count = v.unread_count - x.unread,
        last_message_key = l.message_key, last_time_ms = l.time_ms
    FROM (SELECT v_owner[i] AS owner, v_with[i] AS partner, count(*) FILTER (WHERE v_unread[i]) AS unread
          FROM generate_series(1, cardinality(v_key)) i
          WHERE v_type[i] IN (1, 2) AND NOT v_courier[i] GROUP BY 1, 2) x
    LEFT JOIN LATERAL (
        SELECT m.message_key, m.time_ms FROM signed_messages m
        WHERE m.owner_login = x.owner AND m.with_login = x.partner AND m.message_type IN (1, 2)
          AND NOT m.courier
        ORDER BY m.time_ms DESC, m.message_key DESC LIMIT 1) l ON true
    WHERE v.owner_login = x.owner AND v.with_login = x.partner;

    SELECT array_agg(from_login), array_agg(outgoing_key) INTO v_d_from, v_d_key
    FROM (
        SELECT d.from_login, d.outgoing_key
        FROM (SELECT DISTINCT v_from[i] AS author,
                     v_base[i] || CASE WHEN v_type[i] < 3 THEN '|2' ELSE '|4' END AS key
              FROM generate_series(1, cardinality(v_key)) i) x
        JOIN dm_delivery_state d ON d.from_login = x.author AND d.outgoing_key = x.key
        WHERE NOT EXISTS (SELECT FROM signed_messages m WHERE m.owner_login = d.from_login
                                                          AND m.message_key = d.outgoing_key)
          AND NOT EXISTS (SELECT FROM signed_messages m WHERE m.owner_login = d.to_login
                                                          AND m.message_key = d.incoming_key)
        ORDER BY d.from_login, d.outgoing_key FOR UPDATE OF d) y;
    DELETE FROM dm_delivery_state d USING generate_series(1, cardinality(v_d_key)) i
    WHERE d.from_login = v_d_from[i] AND d.outgoing_key = v_d_key[i];

    PERFORM FROM dm_sync_outbox o
    JOIN (SELECT v_owner[i] AS owner, v_key[i] AS key FROM generate_series(1, cardinality(v_key)) i
          UNION
          SELECT v_from[i], v_base[i] || '|' || (v_type[i] + 1)::text
          FROM generate_series(1, cardinality(v_key)) i WHERE v_type[i] IN (1, 3)) x
      ON o.owner_login = x.owner AND o.primary_message_key = x.key
    ORDER BY o.owner_login, o.primary_message_key FOR UPDATE OF o;
    DELETE FROM dm_sync_outbox o USING generate_series(1, cardinality(v_key)) i
    WHERE o.owner_login = v_owner[i] AND o.primary_message_key = v_key[i];
    -- The author's pair whose incoming copy is gone: one blob, by pull only. If it is synced already,
    -- the other server holds what is left of it.
    UPDATE dm_sync_outbox o SET push_due_at_ms = NULL, lease_owner = NULL, lease_until_ms = NULL,
        row_version = o.row_version + 1,
        sync_id = m.message_key || ':' || m.revision_time_ms || ':' || m.reencrypted_at_ms || ':' ||
                  left(encode(sha256(m.blob), 'hex'), 16)
    FROM generate_series(1, cardinality(v_key)) i, signed_messages m
    WHERE v_type[i] IN (1, 3) AND o.owner_login = v_from[i]
      AND o.primary_message_key = v_base[i] || '|' || (v_type[i] + 1)::text
      AND m.owner_login = o.owner_login AND m.message_key = o.primary_message_key;
END $$;
COMMENT ON FUNCTION remove_covered(text[], text[], boolean[], text[], bigint[], bigint[], bigint[], text[]) IS 'Remove what new tombstones cover, and what belongs to it; internal.';
