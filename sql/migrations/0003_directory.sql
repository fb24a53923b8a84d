-- Users learnt from other servers: from whom, and what contradicts them.

ALTER TABLE users ADD COLUMN imported_from text COLLATE "C",
                  ADD COLUMN other_key text COLLATE "C",
                  ADD COLUMN other_key_from text COLLATE "C",
                  ADD COLUMN other_key_at_ms bigint;
COMMENT ON COLUMN users.imported_from IS 'Server whose answer this record is; NULL = added here.';
COMMENT ON COLUMN users.other_key IS 'A client key that another server names for this login; not used. It needs the operator: settle_user_key(). NULL = none.';
COMMENT ON COLUMN users.other_key_from IS 'Server that named it last.';
COMMENT ON COLUMN users.other_key_at_ms IS 'When.';

-- Where a server is whose users write to us: as its users' records say.
CREATE INDEX user_access_servers_current_server ON user_access_servers_current (server_login);

-- It gains a column.
DROP FUNCTION IF EXISTS get_user(text);
