-- Users, their access servers, partner servers.

CREATE OR REPLACE FUNCTION get_user(p_login text)
RETURNS TABLE (login text, client_key text, enc_key text, enc_key_sig text, source text,
               server1 text, url1 text, server2 text, url2 text, age_ms bigint, profile text)
LANGUAGE sql STABLE AS $$
    SELECT u.login::text, u.client_key::text, u.enc_key::text, u.enc_key_sig::text, u.source,
           a.server_login::text, a.url::text, b.server_login::text, b.url::text,
           now_ms() - u.refreshed_at_ms, p.record
    FROM users u
    LEFT JOIN user_profiles p ON p.login = u.login
    LEFT JOIN user_access_servers_current a ON a.login = u.login AND a.slot = 1
    LEFT JOIN user_access_servers_current b ON b.login = u.login AND b.slot = 2
    WHERE u.login = p_login
$$;
COMMENT ON FUNCTION get_user(text) IS 'One user with access servers, how long ago the record was confirmed, and the signed profile.';

-- 0 added, 1 exists with this key, 2 exists with another key; nothing is changed in the last two.
-- An imported record of somebody who is added here with the same key, to be served here, becomes a
-- local one: the user has come. Not if they have signed a profile: everybody else would go by that.
CREATE OR REPLACE FUNCTION add_user(p_me text, p_login text, p_client_key text, p_enc_key text,
    p_enc_key_sig text, p_source text, p_servers text[], p_urls text[]) RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    v_now bigint := now_ms();
    v_old text;
    v_source text;
BEGIN
    INSERT INTO users (login, client_key, enc_key, enc_key_sig, source, created_at_ms, refreshed_at_ms)
    VALUES (p_login, p_client_key, p_enc_key, p_enc_key_sig, p_source, v_now, v_now)
    ON CONFLICT (login) DO NOTHING;
    IF NOT FOUND THEN
        SELECT client_key, source INTO v_old, v_source FROM users WHERE login = p_login;
        IF v_old <> p_client_key THEN
            RETURN 2;
        ELSIF v_source = 'local' OR p_source <> 'local' OR NOT p_me = ANY (p_servers)
              OR EXISTS (SELECT FROM user_profiles WHERE login = p_login) THEN
            RETURN 1;
        END IF;
        -- First the servers: they lock the head before the row.
        PERFORM set_user_servers(p_me, p_login, p_servers, p_urls);
        UPDATE users SET source = 'local', imported_from = NULL, refreshed_at_ms = v_now,
            enc_key = coalesce(p_enc_key, enc_key), enc_key_sig = coalesce(p_enc_key_sig, enc_key_sig)
        WHERE login = p_login;
        RETURN 0;
    END IF;
    INSERT INTO user_keys (login, client_key, from_ms) VALUES (p_login, p_client_key, v_now);
    PERFORM set_user_servers(p_me, p_login, p_servers, p_urls);
    RETURN 0;
END $$;
COMMENT ON FUNCTION add_user(text, text, text, text, text, text, text[], text[]) IS 'Add a user with one or two access servers.';

-- Replace the access servers. Everything that depends on them changes in the same transaction,
-- under the owner's head: the event head of somebody newly served here, the hints of waiting rows,
-- and the order to fill the outbox of an owner whose second server is new. What waits for somebody
-- who comes to be served here is due at once: it needs no more than to be handed over.
CREATE OR REPLACE FUNCTION set_user_servers(p_me text, p_login text, p_servers text[], p_urls text[])
RETURNS boolean LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    v_old text;
    v_new text;
    v_comes boolean;
BEGIN
    PERFORM FROM users WHERE login = p_login;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_me = ANY (p_servers) THEN
        -- Receipts that passed through may have left read times for this user.
        INSERT INTO user_event_heads (owner_login, has_marks)
        SELECT p_login, EXISTS (SELECT FROM read_marks r WHERE r.owner_login = p_login)
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM lock_heads(p_me, ARRAY[p_login]);
    -- Two changes of somebody without a head would meet in the rows themselves.
    PERFORM FROM users WHERE login = p_login FOR NO KEY UPDATE;
    SELECT max(server_login) FILTER (WHERE server_login <> p_me) INTO v_old
    FROM user_access_servers_current WHERE login = p_login
    HAVING bool_or(server_login = p_me);
    v_comes := p_me = ANY (p_servers) AND NOT EXISTS (
        SELECT FROM user_access_servers_current WHERE login = p_login AND server_login = p_me);
    DELETE FROM user_access_servers_current WHERE login = p_login;
    INSERT INTO user_access_servers_current (login, slot, server_login, url)
    SELECT p_login, i, p_servers[i], p_urls[i] FROM generate_series(1, cardinality(p_servers)) i;
    SELECT max(server_login) FILTER (WHERE server_login <> p_me) INTO v_new
    FROM user_access_servers_current WHERE login = p_login
    HAVING bool_or(server_login = p_me);
    IF v_new IS NOT NULL AND v_new IS DISTINCT FROM v_old THEN
        PERFORM order_full_sync(p_login, v_new);
    END IF;
    UPDATE dm_delivery_state d SET route_hint = coalesce(p_servers[1], ''),
        next_attempt_at_ms = CASE WHEN v_comes THEN LEAST(d.next_attempt_at_ms, now_ms())
                                  ELSE d.next_attempt_at_ms END
    FROM (SELECT from_login, outgoing_key FROM dm_delivery_state
          WHERE to_login = p_login AND state = 'accepted'
            AND (v_comes OR route_hint <> coalesce(p_servers[1], ''))
          ORDER BY from_login, outgoing_key FOR NO KEY UPDATE) x
    WHERE d.from_login = x.from_login AND d.outgoing_key = x.outgoing_key;
    RETURN true;
END $$;
COMMENT ON FUNCTION set_user_servers(text, text, text[], text[]) IS 'Replace a user''s access servers and what depends on them; false = no such user.';

CREATE OR REPLACE FUNCTION add_server(p_login text, p_url text, p_key text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO sync_servers AS s (server_login, url, public_keys, updated_at_ms)
    VALUES (p_login, p_url, array_remove(ARRAY[p_key], NULL), now_ms())
    ON CONFLICT (server_login) DO UPDATE SET url = excluded.url,
        public_keys = CASE WHEN p_key IS NULL OR p_key = ANY (s.public_keys) THEN s.public_keys
                           ELSE s.public_keys || p_key END,
        updated_at_ms = excluded.updated_at_ms
$$;
COMMENT ON FUNCTION add_server(text, text, text) IS 'Add a partner server or change its address; a key given is added to its keys.';

CREATE OR REPLACE FUNCTION list_servers()
RETURNS TABLE (server_login text, url text, blocked boolean) LANGUAGE sql STABLE AS $$
    SELECT server_login::text, url::text, blocked FROM sync_servers ORDER BY server_login
$$;
COMMENT ON FUNCTION list_servers() IS 'All partner servers.';
