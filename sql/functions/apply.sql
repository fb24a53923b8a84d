-- Applying verified containers: the one path by which a copy gets into signed_messages, and the
-- outbox row that belongs to it. Internal; the public functions lock the heads, judge, and call
-- these. Items are addressed by subscripts of parallel arrays, never by joining arrays to each
-- other: the cost per item does not depend on how many there are, whatever the planner believes.

-- Apply copies that are all different (no container twice). Container i has p_per copies, at positions
-- (i-1)*p_per + 1 …: one of type p_type[i], owned by its recipient, then, if p_per is 2, one of type
-- p_type[i] + p_step, owned by its author. p_skip marks containers that are not to be applied, p_not
-- (NULL = none) copies that are not to be stored: covered by a tombstone, or of somebody who has no
-- copy here. p_to_served: this server serves the recipient; otherwise the incoming copy is a courier
-- copy. Whoever hands over an outgoing copy has made sure that its author is served. p_marks: read
-- marks may wait for texts that come now. A copy whose p_sha is NULL did not come at all.
--
-- o_action per copy:
--   0  nothing changed: skipped, or the same or a higher version is stored
--   1  stored, was not there
--   2  replaced a lower version (revision, then SHA-256 for equal revisions)
--   3  a courier copy became its owner's copy, its bytes stayed
--   4  the same, and the bytes were replaced
--   5  a courier copy became its owner's, who has deleted it: removed
-- o_key: its message key; o_tell: the owner whose log must say so, NULL = nobody's; o_rev, o_reenc:
-- the revision stored now; o_same: what is stored now is what came.
CREATE OR REPLACE FUNCTION apply_copies(
    p_now bigint, p_per integer, p_step integer, p_skip boolean[], p_not boolean[],
    p_to_served boolean[], p_marks boolean,
    p_from text[], p_to text[], p_base text[], p_type integer[], p_time bigint[], p_nonce bigint[],
    p_rev bigint[], p_reenc bigint[], p_sha bytea[], p_blob bytea[],
    p_ref_time bigint[], p_ref_nonce bigint[],
    OUT o_action smallint[], OUT o_key text[], OUT o_tell text[], OUT o_rev bigint[],
    OUT o_reenc bigint[], OUT o_same boolean[])
LANGUAGE plpgsql AS $$
DECLARE
    v_n integer := cardinality(p_sha);
    v_owner text[];
    v_read bigint[];
    v_fresh boolean;
    v_other boolean;
    v_text boolean;
    v_gone boolean;
BEGIN
    SELECT array_agg(action), array_agg(key), array_agg(owner),
           array_agg(CASE WHEN action BETWEEN 1 AND 4 AND served THEN owner END),
           array_agg(CASE WHEN newer THEN p_rev[c] ELSE x.rev END),
           array_agg(CASE WHEN newer THEN p_reenc[c] ELSE x.reenc END),
           array_agg(newer OR x.same), array_agg(x.read_at_ms), bool_or(action = 1),
           bool_or(action BETWEEN 2 AND 4), bool_or(action = 5),
           bool_or(action IN (1, 3, 4) AND served AND type = 1)
    INTO o_action, o_key, v_owner, o_tell, o_rev, o_reenc, o_same, v_read, v_fresh, v_other, v_gone,
         v_text
    FROM (
        SELECT c, k.key, k.owner, k.served, p_type[k.i] AS type, m.revision_time_ms AS rev,
               m.reencrypted_at_ms AS reenc, p_sha[c] IS NULL OR m.digest = p_sha[c] AS same,
               m.read_at_ms, w.newer,
               (CASE WHEN p_skip[k.i] OR p_sha[c] IS NULL THEN 0
                     WHEN p_not[c] THEN CASE WHEN m.courier AND k.served THEN 5 ELSE 0 END
                     WHEN m.owner_login IS NULL THEN 1
                     WHEN m.courier AND k.served THEN CASE WHEN w.newer THEN 4 ELSE 3 END
                     WHEN w.newer THEN 2 ELSE 0 END)::smallint AS action
        FROM generate_series(1, v_n) c
        CROSS JOIN LATERAL (SELECT i, p_base[i] || '|' || (p_type[i] + nth * p_step)::text AS key,
                                   CASE nth WHEN 0 THEN p_to[i] ELSE p_from[i] END AS owner,
                                   nth = 1 OR p_to_served[i] AS served
                            FROM (SELECT (c + p_per - 1) / p_per AS i, (c - 1) % p_per AS nth) y
                            OFFSET 0) k
        LEFT JOIN signed_messages m ON m.owner_login = k.owner AND m.message_key = k.key
        CROSS JOIN LATERAL (SELECT p_sha[c] IS NOT NULL AND (m.owner_login IS NULL
            OR (p_rev[c], p_reenc[c], p_sha[c]) > (m.revision_time_ms, m.reencrypted_at_ms, m.digest))
            AS newer OFFSET 0) w
        ORDER BY c) x;
    IF p_marks AND v_fresh THEN
        v_read := take_read_marks(p_per, p_from, p_to, p_type, p_time, v_owner, o_key, o_action, v_read);
    END IF;
    IF v_fresh THEN
        INSERT INTO signed_messages (owner_login, message_key, base_key, from_login, to_login,
            message_type, courier, time_ms, nonce, revision_time_ms, reencrypted_at_ms,
            created_at_ms, stored_at_ms, read_at_ms, digest, blob, ref_time_ms, ref_nonce)
        SELECT v_owner[c], o_key[c], p_base[i], p_from[i], p_to[i],
               p_type[i] + (c - 1) % p_per * p_step, (c - 1) % p_per = 0 AND NOT p_to_served[i],
               p_time[i], p_nonce[i],
               p_rev[c], p_reenc[c], p_now, p_now, v_read[c], p_sha[c], p_blob[c],
               CASE p_type[i] WHEN 3 THEN p_ref_time[c] END,
               CASE p_type[i] WHEN 3 THEN p_ref_nonce[c] END
        FROM generate_series(1, v_n) c, LATERAL (SELECT (c + p_per - 1) / p_per AS i OFFSET 0) k
        WHERE o_action[c] = 1;
    END IF;
    IF v_other THEN
        UPDATE signed_messages m SET
            courier = o_action[c] = 2 AND m.courier,
            created_at_ms = CASE WHEN o_action[c] = 2 THEN m.created_at_ms ELSE p_now END,
            stored_at_ms = p_now,
            revision_time_ms = o_rev[c], reencrypted_at_ms = o_reenc[c],
            digest = CASE WHEN o_action[c] = 3 THEN m.digest ELSE p_sha[c] END,
            blob = CASE WHEN o_action[c] = 3 THEN m.blob ELSE p_blob[c] END,
            ref_time_ms = CASE WHEN o_action[c] <> 3 AND p_type[i] = 3 THEN p_ref_time[c]
                               ELSE m.ref_time_ms END,
            ref_nonce = CASE WHEN o_action[c] <> 3 AND p_type[i] = 3 THEN p_ref_nonce[c]
                             ELSE m.ref_nonce END
        FROM generate_series(1, v_n) c, LATERAL (SELECT (c + p_per - 1) / p_per AS i OFFSET 0) k
        WHERE o_action[c] BETWEEN 2 AND 4 AND m.owner_login = v_owner[c] AND m.message_key = o_key[c];
    END IF;
    IF v_gone THEN
        DELETE FROM signed_messages m USING generate_series(1, v_n) c
        WHERE o_action[c] = 5 AND m.owner_login = v_owner[c] AND m.message_key = o_key[c];
        -- A delivery row goes with the last of its two copies.
        DELETE FROM dm_delivery_state d USING generate_series(1, v_n) c,
            LATERAL (SELECT p_from[i] AS author, p_base[i] || '|' || (p_type[i] + 1)::text AS key
                     FROM (SELECT (c + p_per - 1) / p_per AS i) y OFFSET 0) k
        WHERE o_action[c] = 5 AND d.from_login = k.author AND d.outgoing_key = k.key
          AND NOT EXISTS (SELECT FROM signed_messages m
                          WHERE m.owner_login = k.author AND m.message_key = k.key);
    END IF;
    IF v_text THEN
        INSERT INTO conversations AS v (owner_login, with_login, last_message_key, last_time_ms,
                                        unread_count)
        SELECT DISTINCT ON (owner, partner) owner, partner, key, time_ms,
               sum(unread) OVER (PARTITION BY owner, partner)
        FROM (
            SELECT v_owner[c] COLLATE "C" AS owner, k.partner COLLATE "C" AS partner,
                   o_key[c] COLLATE "C" AS key, p_time[k.i] AS time_ms,
                   (k.nth = 0 AND p_from[k.i] <> p_to[k.i] AND v_read[c] IS NULL)::integer AS unread
            FROM generate_series(1, v_n) c
            CROSS JOIN LATERAL (SELECT i, nth, CASE nth WHEN 0 THEN p_from[i] ELSE p_to[i] END AS partner
                                FROM (SELECT (c + p_per - 1) / p_per AS i, (c - 1) % p_per AS nth) y
                                OFFSET 0) k
            WHERE o_action[c] IN (1, 3, 4) AND o_tell[c] IS NOT NULL AND p_type[k.i] = 1) x
        ORDER BY owner, partner, time_ms DESC, key DESC
        ON CONFLICT (owner_login, with_login) DO UPDATE SET
            unread_count = v.unread_count + excluded.unread_count,
            last_message_key = CASE WHEN v.last_message_key IS NULL
                OR (excluded.last_time_ms, excluded.last_message_key) > (v.last_time_ms, v.last_message_key)
                THEN excluded.last_message_key ELSE v.last_message_key END,
            last_time_ms = GREATEST(v.last_time_ms, excluded.last_time_ms);
    END IF;
END $$;
COMMENT ON FUNCTION apply_copies(bigint, integer, integer, boolean[], boolean[], boolean[], boolean, text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[], bigint[], bigint[]) IS 'Store copies by the revision rule and keep conversations in step; internal, see its source.';

-- Write the outbox rows of items that changed, or came again from where they would go.
-- p_owner NULL = no row for this item; p_also NULL or the key of the pair's incoming copy, kept
-- under p_also_owner. p_synced: it came from the owner's second server and nothing stored is newer.
-- p_changed: the bytes changed; otherwise a row is at most marked synced, never unsynced.
CREATE OR REPLACE FUNCTION put_outbox(p_now bigint, p_owner text[], p_primary text[],
    p_also_owner text[], p_also text[], p_changed boolean[], p_synced boolean[],
    p_push_due bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dm_sync_outbox AS o (owner_login, primary_message_key, sync_id, stored_at_ms, synced,
                                     push_due_at_ms)
    SELECT p_owner[i], p_primary[i],
           p_primary[i] || ':' || m.revision_time_ms || ':' || m.reencrypted_at_ms || ':' ||
           left(encode(sha256(CASE WHEN a.blob IS NULL THEN m.blob ELSE a.blob || m.blob END), 'hex'), 16),
           p_now, p_synced[i],
           -- A pair without its incoming copy, which the recipient deleted here, is left to the pull.
           CASE WHEN NOT p_synced[i] AND (p_also[i] IS NULL OR a.blob IS NOT NULL)
                THEN p_push_due[i] END
    FROM generate_series(1, cardinality(p_owner)) i
    JOIN signed_messages m ON m.owner_login = p_owner[i] AND m.message_key = p_primary[i]
    LEFT JOIN signed_messages a ON a.owner_login = p_also_owner[i] AND a.message_key = p_also[i]
    WHERE p_changed[i]
    ORDER BY 1, 2
    ON CONFLICT (owner_login, primary_message_key) DO UPDATE SET
        sync_id = excluded.sync_id, stored_at_ms = excluded.stored_at_ms, synced = excluded.synced,
        push_due_at_ms = excluded.push_due_at_ms, push_tries = 0, lease_owner = NULL,
        lease_until_ms = NULL, row_version = o.row_version + 1;
    IF NOT EXISTS (SELECT FROM generate_series(1, cardinality(p_owner)) i
                   WHERE NOT p_changed[i] AND p_synced[i]) THEN
        RETURN;
    END IF;
    -- In key order, as acknowledgements come. CASE hides from the planner that the index of unsynced
    -- rows could be used: it would walk through all of them for each one.
    PERFORM FROM generate_series(1, cardinality(p_owner)) i
    JOIN dm_sync_outbox o ON o.owner_login = p_owner[i] AND o.primary_message_key = p_primary[i]
    WHERE NOT p_changed[i] AND p_synced[i] AND CASE WHEN o.synced THEN false ELSE true END
    ORDER BY o.owner_login, o.primary_message_key FOR NO KEY UPDATE OF o;
    UPDATE dm_sync_outbox o SET synced = true, push_due_at_ms = NULL, lease_owner = NULL,
        lease_until_ms = NULL, row_version = o.row_version + 1
    FROM generate_series(1, cardinality(p_owner)) i
    WHERE NOT p_changed[i] AND p_synced[i] AND o.owner_login = p_owner[i]
      AND o.primary_message_key = p_primary[i] AND CASE WHEN o.synced THEN false ELSE true END;
END $$;
COMMENT ON FUNCTION put_outbox(bigint, text[], text[], text[], text[], boolean[], boolean[], bigint[]) IS 'Write outbox rows of changed items; internal.';
