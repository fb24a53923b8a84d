-- Users we do not know: whom to ask, and what becomes of the answers.

-- The servers that may know p_login, in the order to ask them. `kind`: home (an access server in the
-- record we have, not a partner), partner, sender (p_sender, if it is neither; '' = nobody). `home`
-- is also true for partners that are access servers in the record.
--
-- The address of a sender that is no partner is the one most users name for it, of a sample: what
-- one of them says does not decide.
CREATE OR REPLACE FUNCTION look_up_servers(p_me text, p_login text, p_sender text)
RETURNS TABLE (server_login text, url text, kind text, home boolean)
LANGUAGE sql STABLE AS $$
    WITH homes AS (
        SELECT a.server_login, a.url FROM user_access_servers_current a
        WHERE a.login = p_login AND a.server_login <> p_me),
    sample AS (
        SELECT a.url FROM user_access_servers_current a
        WHERE a.server_login = nullif(p_sender, p_me)
          AND p_sender NOT IN (SELECT h.server_login FROM homes h) LIMIT 100)
    SELECT h.server_login::text, h.url::text, 'home', true FROM homes h
    WHERE NOT EXISTS (SELECT FROM sync_servers s WHERE s.server_login = h.server_login)
    UNION ALL
    (SELECT s.server_login::text, s.url::text, 'partner', h.server_login IS NOT NULL
     FROM sync_servers s LEFT JOIN homes h USING (server_login)
     WHERE NOT s.blocked AND s.server_login <> p_me
     ORDER BY h.server_login IS NULL, s.server_login LIMIT 32)
    UNION ALL
    (SELECT p_sender, x.url::text, 'sender', false FROM sample x
     WHERE NOT EXISTS (SELECT FROM sync_servers s WHERE s.server_login = p_sender)
     GROUP BY x.url ORDER BY count(*) DESC, x.url LIMIT 1)
$$;
COMMENT ON FUNCTION look_up_servers(text, text, text) IS 'Servers to ask about a login.';

-- Keep an answer of p_from about p_login. p_source: partner, or provisional for the word of a server
-- that is not one. Nothing here is signed, so it adds, confirms and moves; it never takes away:
--
--   a local record stays as it is
--   the access servers of somebody served here stay; only a partner's word makes us serve somebody
--   the first key stays, unless it is provisional and a partner names another
--   servers change by the word of partners, or of an access server in the record itself
--   what the user has signed in a profile, servers and encryption key, stays: see import_record()
--
-- 0 kept, 1 not needed, 2 another key than ours: noted in the record, 3 not believed.
CREATE OR REPLACE FUNCTION import_user(p_me text, p_login text, p_client_key text, p_enc_key text,
    p_enc_key_sig text, p_source text, p_from text, p_servers text[], p_urls text[])
RETURNS integer LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    v_now bigint := now_ms();
    v_user users;
    v_old text[];
    v_old_urls text[];
    v_profile boolean; -- there is one,
    v_signed boolean;  -- with an encryption key
BEGIN
    IF p_me = ANY (p_servers) THEN
        IF p_source <> 'partner' THEN
            RETURN 3;
        END IF;
        -- set_user_servers() will want it, and heads come before rows.
        INSERT INTO user_event_heads (owner_login, has_marks)
        SELECT p_login, EXISTS (SELECT FROM read_marks r WHERE r.owner_login = p_login)
        WHERE NOT EXISTS (SELECT FROM users WHERE login = p_login AND source = 'local')
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM lock_heads(p_me, ARRAY[p_login]);
    LOOP
        SELECT * INTO v_user FROM users WHERE login = p_login FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO users (login, client_key, enc_key, enc_key_sig, source, imported_from,
                           created_at_ms, refreshed_at_ms)
        VALUES (p_login, p_client_key, p_enc_key, p_enc_key_sig, p_source, p_from, v_now, v_now)
        ON CONFLICT (login) DO NOTHING;
        IF FOUND THEN
            INSERT INTO user_keys (login, client_key, from_ms) VALUES (p_login, p_client_key, v_now);
            PERFORM set_user_servers(p_me, p_login, p_servers, p_urls);
            RETURN 0;
        END IF;
    END LOOP;
    IF v_user.source = 'local' THEN
        RETURN 1;
    END IF;
    SELECT array_agg(server_login::text ORDER BY slot), array_agg(url::text ORDER BY slot)
    INTO v_old, v_old_urls FROM user_access_servers_current WHERE login = p_login;
    IF v_user.client_key <> p_client_key
       AND NOT (v_user.source = 'provisional' AND p_source = 'partner') THEN
        UPDATE users SET other_key = p_client_key, other_key_from = p_from, other_key_at_ms = v_now
        WHERE login = p_login;
        RETURN 2;
    END IF;
    IF p_source <> 'partner' AND v_user.source <> 'provisional'
       AND NOT coalesce(p_from = ANY (v_old), false) THEN
        RETURN 1;
    END IF;
    IF v_user.client_key <> p_client_key THEN
        DELETE FROM user_profiles WHERE login = p_login; -- signed by the key that was wrong
        UPDATE users SET client_key = p_client_key, enc_key = NULL, enc_key_sig = NULL,
                         other_key = NULL, other_key_from = NULL, other_key_at_ms = NULL
        WHERE login = p_login;
        INSERT INTO user_keys (login, client_key, from_ms) VALUES (p_login, p_client_key, v_now)
        ON CONFLICT DO NOTHING;
    END IF;
    SELECT count(*) > 0, count(enc_key_sig) > 0 INTO v_profile, v_signed
    FROM user_profiles WHERE login = p_login;
    UPDATE users SET refreshed_at_ms = v_now,
        source = CASE WHEN p_source = 'partner' AND source = 'provisional' THEN 'partner' ELSE source END,
        imported_from = p_from,
        enc_key = CASE WHEN v_signed THEN enc_key ELSE coalesce(p_enc_key, enc_key) END,
        enc_key_sig = CASE WHEN v_signed THEN enc_key_sig ELSE coalesce(p_enc_key_sig, enc_key_sig) END
    WHERE login = p_login;
    IF NOT v_profile AND NOT coalesce(p_me = ANY (v_old), false)
       AND (v_old, v_old_urls) IS DISTINCT FROM (p_servers, p_urls) THEN
        PERFORM set_user_servers(p_me, p_login, p_servers, p_urls);
    END IF;
    RETURN 0;
END $$;
COMMENT ON FUNCTION import_user(text, text, text, text, text, text, text, text[], text[]) IS 'Keep another server''s answer about a user.';

-- For the operator, when v_users shows another key: take it (true) or forget it (false).
CREATE OR REPLACE FUNCTION settle_user_key(p_login text, p_accept boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM users WHERE login = p_login AND other_key IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_accept THEN
        INSERT INTO user_keys (login, client_key, from_ms)
        SELECT login, other_key, now_ms() FROM users WHERE login = p_login ON CONFLICT DO NOTHING;
        DELETE FROM user_profiles WHERE login = p_login; -- signed by the key that was wrong
        UPDATE users SET client_key = other_key, enc_key = NULL, enc_key_sig = NULL
        WHERE login = p_login;
    END IF;
    UPDATE users SET other_key = NULL, other_key_from = NULL, other_key_at_ms = NULL
    WHERE login = p_login;
    -- The daemons are told when this commits (elsewhere that is done outside the transaction, for
    -- speed; an operator waits for nobody).
    PERFORM pg_notify('shine_events', '~' || p_login);
    RETURN true;
END $$;
COMMENT ON FUNCTION settle_user_key(text, boolean) IS 'Operator: accept (true) or forget (false) the other key that v_users shows; false = there is none.';
