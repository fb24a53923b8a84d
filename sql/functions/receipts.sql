-- What read receipts do: the read time of the text they reference, whichever of the two came first,
-- and the unread count of the reader's conversation. Internal; the caller holds the heads.

-- The read times of the copies that are about to be stored (o_action 1): p_read with what waited for
-- them in read_marks, which is taken from there.
CREATE OR REPLACE FUNCTION take_read_marks(p_per integer, p_from text[], p_to text[], p_type integer[],
    p_time bigint[], p_owner text[], p_key text[], p_action smallint[], p_read bigint[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_read bigint[];
    v_any boolean;
BEGIN
    SELECT array_agg(coalesce(p_read[c], r.read_at_ms) ORDER BY c), bool_or(r.read_at_ms IS NOT NULL)
    INTO v_read, v_any
    FROM generate_series(1, cardinality(p_key)) c
    CROSS JOIN LATERAL (SELECT (c + p_per - 1) / p_per AS i OFFSET 0) k
    LEFT JOIN read_marks r ON p_action[c] = 1 AND p_type[k.i] = 1
        AND r.owner_login = p_owner[c]
        AND r.with_login = CASE (c - 1) % p_per WHEN 0 THEN p_from[k.i] ELSE p_to[k.i] END
        AND r.time_ms = p_time[k.i] AND r.text_key = p_key[c];
    IF v_any THEN
        DELETE FROM read_marks r USING generate_series(1, cardinality(p_key)) c,
            LATERAL (SELECT (c + p_per - 1) / p_per AS i OFFSET 0) k
        WHERE p_action[c] = 1 AND p_type[k.i] = 1 AND r.owner_login = p_owner[c]
          AND r.with_login = CASE (c - 1) % p_per WHEN 0 THEN p_from[k.i] ELSE p_to[k.i] END
          AND r.time_ms = p_time[k.i] AND r.text_key = p_key[c];
    END IF;
    RETURN v_read;
END $$;
COMMENT ON FUNCTION take_read_marks(integer, text[], text[], integer[], bigint[], text[], text[], smallint[], bigint[]) IS 'Read times that waited for texts; internal.';

-- Apply the receipts (type 3) among containers that apply_copies() has seen; bodies are given per copy,
-- because those that a server brings may differ. Every receipt counts,
-- also one whose bytes lost against others under the same key: what is kept must depend only on the
-- set of receipts that ever came. A covered one moves last_read_at_ms and nothing else.
CREATE OR REPLACE FUNCTION apply_receipts(p_per integer, p_verdict integer[], p_not boolean[],
    p_from text[], p_to text[], p_type integer[], p_ref_time bigint[], p_ref_nonce bigint[],
    p_read_at bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_owner text[]; v_with text[]; v_time bigint[]; v_key text[]; v_at bigint[];
    v_stored boolean[]; v_seen boolean[];
BEGIN
    -- The copies that were read: type 3 the author's outgoing one, type 4 the reader's incoming one.
    SELECT array_agg(owner), array_agg(partner), array_agg(g.time_ms), array_agg(key),
           array_agg(read_at), array_agg(m.owner_login IS NOT NULL),
           array_agg(m.read_at_ms IS NULL AND m.message_type = 1 AND NOT m.courier
                     AND m.from_login <> m.to_login)
    INTO v_owner, v_with, v_time, v_key, v_at, v_stored, v_seen
    FROM (
        SELECT owner, partner, time_ms, key, min(read_at) AS read_at
        FROM (
            SELECT (CASE nth WHEN 0 THEN p_to[i] ELSE p_from[i] END) COLLATE "C" AS owner,
                   CASE nth WHEN 0 THEN p_from[i] ELSE p_to[i] END AS partner,
                   p_ref_time[c] AS time_ms, p_read_at[c] AS read_at,
                   (p_to[i] || '|' || p_from[i] || '|' || p_ref_time[c] || '|' || p_ref_nonce[c] ||
                    CASE nth WHEN 0 THEN '|2' ELSE '|1' END) COLLATE "C" AS key
            FROM generate_series(1, p_per * cardinality(p_type)) c
            CROSS JOIN LATERAL (SELECT (c + p_per - 1) / p_per AS i, (c - 1) % p_per AS nth OFFSET 0) k
            WHERE p_type[i] = 3 AND p_verdict[i] = 0 AND p_not[c] IS NOT TRUE) x
        GROUP BY 1, 2, 3, 4) g
    LEFT JOIN signed_messages m ON m.owner_login = g.owner AND m.message_key = g.key;
    UPDATE signed_messages m SET read_at_ms = v_at[i]
    FROM generate_series(1, cardinality(v_key)) i
    WHERE v_stored[i] AND m.owner_login = v_owner[i] AND m.message_key = v_key[i]
      AND (m.read_at_ms IS NULL OR m.read_at_ms > v_at[i]);
    IF false = ANY (v_stored) THEN
        INSERT INTO read_marks AS r (owner_login, with_login, time_ms, text_key, read_at_ms)
        SELECT v_owner[i], v_with[i], v_time[i], v_key[i], v_at[i]
        FROM generate_series(1, cardinality(v_key)) i WHERE NOT v_stored[i]
        ON CONFLICT (owner_login, with_login, time_ms, text_key)
            DO UPDATE SET read_at_ms = LEAST(r.read_at_ms, excluded.read_at_ms);
        UPDATE user_event_heads h SET has_marks = true
        FROM (SELECT DISTINCT v_owner[i] AS owner FROM generate_series(1, cardinality(v_key)) i
              WHERE NOT v_stored[i]) x
        WHERE h.owner_login = x.owner AND NOT h.has_marks;
    END IF;
    IF p_per = 2 THEN
        INSERT INTO conversations AS v (owner_login, with_login, last_read_at_ms)
        SELECT p_from[i] COLLATE "C", p_to[i] COLLATE "C", max(p_read_at[2 * i])
        FROM generate_series(1, cardinality(p_type)) i
        WHERE p_type[i] = 3 AND p_verdict[i] IN (0, 4)
        GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (owner_login, with_login)
            DO UPDATE SET last_read_at_ms = GREATEST(v.last_read_at_ms, excluded.last_read_at_ms);
        UPDATE conversations v SET unread_count = v.unread_count - x.n
        FROM (SELECT v_owner[i] AS owner, v_with[i] AS partner, count(*) AS n
              FROM generate_series(1, cardinality(v_key)) i WHERE v_seen[i] GROUP BY 1, 2) x
        WHERE v.owner_login = x.owner AND v.with_login = x.partner;
    END IF;
END $$;
COMMENT ON FUNCTION apply_receipts(integer, integer[], boolean[], text[], text[], integer[], bigint[], bigint[], bigint[]) IS 'Apply what receipts say about the texts they reference; internal.';
