-- Signed profiles, and records that bring one. Signatures are checked before anything comes here.

-- Whoever comes to be served here needs a head, and heads come before rows. None is made for those
-- whom apply_profile() will refuse.
CREATE OR REPLACE FUNCTION head_for_profile(p_me text, p_login text, p_client_key text, p_servers text[])
RETURNS void LANGUAGE sql AS $$
    INSERT INTO user_event_heads (owner_login, has_marks)
    SELECT login, EXISTS (SELECT FROM read_marks r WHERE r.owner_login = p_login)
    FROM users WHERE login = p_login AND client_key = p_client_key AND source <> 'provisional'
                 AND p_me = ANY (p_servers)
    ON CONFLICT DO NOTHING
$$;
COMMENT ON FUNCTION head_for_profile(text, text, text, text[]) IS 'Make the event head of somebody whose profile names this server; internal.';

-- A profile whose signature by p_client_key is right. The newest by (time, signature, signature of
-- the encryption key) wins over any record, local or imported: so all servers end with the same one,
-- in whatever order they learn of several. p_max_future_ms: how far its time may be ahead; NULL = as
-- far as it likes.
--
-- 0 it holds now, 1 it is not newer than the one we have, 2 the user has another key here, 3 no such
-- user, 4 its time is too far ahead, 5 it names this server, but nobody whom we trust has confirmed
-- the key: strangers do not make us serve anybody.
CREATE OR REPLACE FUNCTION apply_profile(p_me text, p_login text, p_client_key text, p_enc_key text,
    p_enc_key_sig text, p_servers text[], p_urls text[], p_time_ms bigint, p_signature bytea,
    p_record text, p_max_future_ms bigint)
RETURNS integer LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET enable_memoize = off SET enable_material = off
AS $$
DECLARE
    v_now bigint := now_ms();
    v_here boolean := p_me = ANY (p_servers);
    v_user users;
    v_old user_profiles;
    v_servers text[];
    v_urls text[];
BEGIN
    IF p_time_ms > v_now + p_max_future_ms THEN
        RETURN 4;
    END IF;
    PERFORM head_for_profile(p_me, p_login, p_client_key, p_servers);
    PERFORM lock_heads(p_me, ARRAY[p_login]);
    SELECT * INTO v_user FROM users WHERE login = p_login FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 3;
    ELSIF v_user.client_key <> p_client_key THEN
        RETURN 2;
    ELSIF v_here AND v_user.source = 'provisional' THEN
        RETURN 5;
    END IF;
    SELECT * INTO v_old FROM user_profiles WHERE login = p_login;
    IF FOUND AND (v_old.time_ms, v_old.signature, coalesce(v_old.enc_key_sig, '') COLLATE "C")
                 >= (p_time_ms, p_signature, coalesce(p_enc_key_sig, '') COLLATE "C") THEN
        RETURN 1;
    END IF;
    INSERT INTO user_profiles AS p (login, record, time_ms, signature, enc_key_sig, stored_at_ms)
    VALUES (p_login, p_record, p_time_ms, p_signature, p_enc_key_sig, v_now)
    ON CONFLICT (login) DO UPDATE SET record = excluded.record, time_ms = excluded.time_ms,
        signature = excluded.signature, enc_key_sig = excluded.enc_key_sig,
        stored_at_ms = excluded.stored_at_ms;
    -- Somebody who has left is no longer this server's own: others must be asked about them.
    UPDATE users SET refreshed_at_ms = v_now,
        source = CASE WHEN source = 'local' AND NOT v_here THEN 'profile'
                      WHEN source = 'profile' AND v_here THEN 'local' ELSE source END,
        enc_key = coalesce(p_enc_key, enc_key), enc_key_sig = coalesce(p_enc_key_sig, enc_key_sig)
    WHERE login = p_login;
    SELECT array_agg(server_login::text ORDER BY slot), array_agg(url::text ORDER BY slot)
    INTO v_servers, v_urls FROM user_access_servers_current WHERE login = p_login;
    IF (v_servers, v_urls) IS DISTINCT FROM (p_servers, p_urls) THEN
        PERFORM set_user_servers(p_me, p_login, p_servers, p_urls);
    END IF;
    RETURN 0;
END $$;
COMMENT ON FUNCTION apply_profile(text, text, text, text, text, text[], text[], bigint, bytea, text, bigint) IS 'Let a signed profile hold, if it is the newest.';

-- The same for a profile that was sent to us. For one that holds now there is a row for every other
-- server that must hear of it: the user's access servers up to now and from now on, at the address
-- to dial; without any there is one row without a server. `provisional`: the key here is the word of
-- a server that is no partner.
CREATE OR REPLACE FUNCTION publish_profile(p_me text, p_login text, p_client_key text, p_enc_key text,
    p_enc_key_sig text, p_servers text[], p_urls text[], p_time_ms bigint, p_signature bytea,
    p_record text, p_max_future_ms bigint)
RETURNS TABLE (verdict integer, provisional boolean, server_login text, url text)
LANGUAGE plpgsql AS $$
DECLARE
    v_servers text[];
    v_urls text[];
    v_verdict integer;
    v_provisional boolean;
BEGIN
    SELECT array_agg(a.server_login::text), array_agg(a.url::text) INTO v_servers, v_urls
    FROM user_access_servers_current a WHERE a.login = p_login;
    SELECT u.source = 'provisional' INTO v_provisional FROM users u WHERE u.login = p_login;
    v_verdict := apply_profile(p_me, p_login, p_client_key, p_enc_key, p_enc_key_sig, p_servers,
                               p_urls, p_time_ms, p_signature, p_record, p_max_future_ms);
    RETURN QUERY
    SELECT v_verdict, coalesce(v_provisional, false), x.server_login, x.url
    FROM (SELECT 1) one
    LEFT JOIN (
        SELECT DISTINCT ON (o.server_login) o.server_login, coalesce(s.url, o.url)::text AS url
        FROM unnest(p_servers || v_servers, p_urls || v_urls) WITH ORDINALITY o (server_login, url, nth)
        LEFT JOIN sync_servers s ON s.server_login = o.server_login
        WHERE o.server_login <> p_me AND NOT coalesce(s.blocked, false)
        ORDER BY o.server_login, o.nth) x ON v_verdict = 0;
END $$;
COMMENT ON FUNCTION publish_profile(text, text, text, text, text, text[], text[], bigint, bytea, text, bigint) IS 'Let a signed profile hold, if it is the newest, and tell whom to pass it on to.';

-- What others may have in their caches.
CREATE OR REPLACE FUNCTION user_state(p_login text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws(' ', u.client_key, u.source, u.enc_key,
        (SELECT string_agg(a.server_login || '=' || a.url, ',' ORDER BY a.slot)
         FROM user_access_servers_current a WHERE a.login = u.login))
    FROM users u WHERE u.login = p_login
$$;
COMMENT ON FUNCTION user_state(text) IS 'A user''s record in one text, to compare; internal.';

-- Keep an answer of p_from about p_login (import_user()), and the profile in it, if there is one
-- (p_record; the servers are then those of the profile). Who tells a profile does not matter: it is
-- signed. `verdict` as import_user(); `changed`: the record is not what it was.
CREATE OR REPLACE FUNCTION import_record(p_me text, p_login text, p_client_key text, p_enc_key text,
    p_enc_key_sig text, p_source text, p_from text, p_servers text[], p_urls text[],
    p_time_ms bigint, p_signature bytea, p_record text, p_profile_enc_key text,
    p_profile_enc_key_sig text, OUT verdict integer, OUT changed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_before text := user_state(p_login);
BEGIN
    IF p_record IS NOT NULL THEN
        PERFORM head_for_profile(p_me, p_login, p_client_key, p_servers);
    END IF;
    verdict := import_user(p_me, p_login, p_client_key, p_enc_key, p_enc_key_sig, p_source, p_from,
                           p_servers, p_urls);
    IF p_record IS NOT NULL AND verdict <> 2
       AND apply_profile(p_me, p_login, p_client_key, p_profile_enc_key, p_profile_enc_key_sig,
                         p_servers, p_urls, p_time_ms, p_signature, p_record, NULL) = 0 THEN
        verdict := 0;
    END IF;
    changed := user_state(p_login) IS DISTINCT FROM v_before;
END $$;
COMMENT ON FUNCTION import_record(text, text, text, text, text, text, text, text[], text[], bigint, bytea, text, text, text) IS 'Keep another server''s answer about a user, with the signed profile in it.';

-- Others were asked about a record that is not theirs, and had nothing newer.
CREATE OR REPLACE FUNCTION confirm_user(p_login text) RETURNS void LANGUAGE sql AS $$
    UPDATE users SET refreshed_at_ms = now_ms() WHERE login = p_login AND source IN ('local', 'profile')
$$;
COMMENT ON FUNCTION confirm_user(text) IS 'A local record was compared with what other servers know.';

CREATE OR REPLACE FUNCTION keys_of_user(p_login text) RETURNS TABLE (client_key text)
LANGUAGE sql STABLE AS $$
    SELECT k.client_key::text FROM user_keys k WHERE k.login = p_login ORDER BY k.from_ms DESC LIMIT 100
$$;
COMMENT ON FUNCTION keys_of_user(text) IS 'Every client key ever accepted for a user, the newest first.';
