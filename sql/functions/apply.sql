-- Applying verified containers: the one path by which a copy gets into signed_messages, and the
-- outbox row that belongs to it. Internal; the public functions lock the heads, judge, and call
-- these. Items are addressed by subscripts of parallel arrays, never by joining arrays to each
-- other: the cost per item does not depend on how many there are, whatever the planner believes.

-- Apply copies that are all different (no message twice). Logical message i has p_per copies, at
-- positions (i-1)*p_per + 1 …: an incoming copy of type p_type[i], owned by its recipient, then, if
-- p_per is 2, the outgoing copy, owned by its author. p_skip marks messages that are not to be
-- applied. p_to_served: this server serves the recipient; otherwise the incoming copy is a courier
-- copy. Whoever hands over an outgoing copy has made sure that its author is served.
--
-- o_action per copy:
--   0  nothing changed: skipped, or the same or a higher version is stored
--   1  stored, was not there
--   2  replaced a lower version (revision, then SHA-256 for equal revisions)
--   3  a courier copy became its owner's copy, its bytes stayed
--   4  the same, and the bytes were replaced
-- o_key: its message key; o_tell: the owner whose log must say so, NULL = nobody's; o_rev, o_reenc:
-- the revision stored now; o_same: what is stored now is what came.
CREATE OR REPLACE FUNCTION apply_copies(
    p_now bigint, p_per integer, p_skip boolean[], p_to_served boolean[],
    p_from text[], p_to text[], p_base text[], p_type integer[], p_time bigint[], p_nonce bigint[],
    p_rev bigint[], p_reenc bigint[], p_sha bytea[], p_blob bytea[],
    OUT o_action smallint[], OUT o_key text[], OUT o_tell text[], OUT o_rev bigint[],
    OUT o_reenc bigint[], OUT o_same boolean[])
LANGUAGE plpgsql AS $$
DECLARE
    v_n integer := cardinality(p_sha);
    v_owner text[];
    v_fresh boolean;
    v_other boolean;
BEGIN
    SELECT array_agg(action), array_agg(key), array_agg(owner),
           array_agg(CASE WHEN action > 0 AND served THEN owner END),
           array_agg(CASE WHEN newer THEN p_rev[c] ELSE x.rev END),
           array_agg(CASE WHEN newer THEN p_reenc[c] ELSE x.reenc END),
           array_agg(newer OR x.same), bool_or(action = 1), bool_or(action > 1)
    INTO o_action, o_key, v_owner, o_tell, o_rev, o_reenc, o_same, v_fresh, v_other
    FROM (
        SELECT c, k.key, k.owner, k.served, m.revision_time_ms AS rev,
               m.reencrypted_at_ms AS reenc, m.digest = p_sha[c] AS same, w.newer,
               (CASE WHEN p_skip[k.i] THEN 0
                     WHEN m.owner_login IS NULL THEN 1
                     WHEN m.courier AND k.served THEN CASE WHEN w.newer THEN 4 ELSE 3 END
                     WHEN w.newer THEN 2 ELSE 0 END)::smallint AS action
        FROM generate_series(1, v_n) c
        CROSS JOIN LATERAL (SELECT i, p_base[i] || '|' || (p_type[i] + nth)::text AS key,
                                   CASE nth WHEN 0 THEN p_to[i] ELSE p_from[i] END AS owner,
                                   nth = 1 OR p_to_served[i] AS served
                            FROM (SELECT (c + p_per - 1) / p_per AS i, (c - 1) % p_per AS nth) y
                            OFFSET 0) k
        LEFT JOIN signed_messages m ON m.owner_login = k.owner AND m.message_key = k.key
        CROSS JOIN LATERAL (SELECT m.owner_login IS NULL
            OR (p_rev[c], p_reenc[c], p_sha[c]) > (m.revision_time_ms, m.reencrypted_at_ms, m.digest)
            AS newer OFFSET 0) w
        ORDER BY c) x;
    IF v_fresh THEN
        INSERT INTO signed_messages (owner_login, message_key, base_key, from_login, to_login,
            message_type, courier, time_ms, nonce, revision_time_ms, reencrypted_at_ms,
            created_at_ms, stored_at_ms, digest, blob)
        SELECT v_owner[c], o_key[c], p_base[i], p_from[i], p_to[i],
               p_type[i] + (c - 1) % p_per, (c - 1) % p_per = 0 AND NOT p_to_served[i], p_time[i],
               p_nonce[i],
               p_rev[c], p_reenc[c], p_now, p_now, p_sha[c], p_blob[c]
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
            blob = CASE WHEN o_action[c] = 3 THEN m.blob ELSE p_blob[c] END
        FROM generate_series(1, v_n) c
        WHERE o_action[c] > 1 AND m.owner_login = v_owner[c] AND m.message_key = o_key[c];
    END IF;
END $$;
COMMENT ON FUNCTION apply_copies(bigint, integer, boolean[], boolean[], text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[]) IS 'Store copies by the revision rule; internal, see its source.';

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
           p_now, p_synced[i], CASE WHEN NOT p_synced[i] THEN p_push_due[i] END
    FROM generate_series(1, cardinality(p_owner)) i
    JOIN signed_messages m ON m.owner_login = p_owner[i] AND m.message_key = p_primary[i]
    LEFT JOIN signed_messages a ON a.owner_login = p_also_owner[i] AND a.message_key = p_also[i]
    WHERE p_changed[i]
    ORDER BY 1, 2
    ON CONFLICT (owner_login, primary_message_key) DO UPDATE SET
        sync_id = excluded.sync_id, stored_at_ms = excluded.stored_at_ms, synced = excluded.synced,
        push_due_at_ms = excluded.push_due_at_ms, push_tries = 0, lease_owner = NULL,
        lease_until_ms = NULL, row_version = o.row_version + 1;
    UPDATE dm_sync_outbox o SET synced = true, push_due_at_ms = NULL, lease_owner = NULL,
        lease_until_ms = NULL, row_version = o.row_version + 1
    FROM generate_series(1, cardinality(p_owner)) i
    WHERE NOT p_changed[i] AND p_synced[i] AND o.owner_login = p_owner[i]
      AND o.primary_message_key = p_primary[i] AND NOT o.synced;
END $$;
COMMENT ON FUNCTION put_outbox(bigint, text[], text[], text[], text[], boolean[], boolean[], bigint[]) IS 'Write outbox rows of changed items; internal.';
