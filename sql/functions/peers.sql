-- Other servers, as the connection pools of the daemons see them.

-- What a process keeps in memory of sync_servers.
CREATE OR REPLACE FUNCTION partner_servers()
RETURNS TABLE (server_login text, url text, blocked boolean, public_keys text) LANGUAGE sql STABLE AS $$
    SELECT server_login::text, url::text, blocked, array_to_string(public_keys, ' ')
    FROM sync_servers ORDER BY server_login
$$;
COMMENT ON FUNCTION partner_servers() IS 'Table sync_servers, with the keys of a server joined by spaces.';
