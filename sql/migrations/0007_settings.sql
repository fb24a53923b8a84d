-- Settings of users, what replication refused, and history that arrives without events of its own.

-- --- settings ---

CREATE TABLE user_settings (
    login        text COLLATE "C" NOT NULL REFERENCES users ON DELETE CASCADE,
    name         text COLLATE "C" NOT NULL,
    value        text COLLATE "C" NOT NULL,
    time_ms      bigint NOT NULL,
    signature    bytea NOT NULL,
    stored_at_ms bigint NOT NULL,
    synced       boolean NOT NULL,
    PRIMARY KEY (login, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
-- Pages for the second server; and the limit, which does not count what was deleted.
CREATE INDEX user_settings_page ON user_settings (login, stored_at_ms, name) WHERE NOT synced;
CREATE INDEX user_settings_live ON user_settings (login) WHERE value <> '';
COMMENT ON TABLE user_settings IS 'Settings of the users served here, one row per name, each signed by its user. The newest time_ms wins. Rows are never removed: one that was deleted stays with an empty value.';
COMMENT ON COLUMN user_settings.login IS 'Whose.';
COMMENT ON COLUMN user_settings.name IS 'Name, [A-Za-z0-9_./-]{1,128}.';
COMMENT ON COLUMN user_settings.value IS 'Value, at most 64 KiB of UTF-8; empty = deleted.';
COMMENT ON COLUMN user_settings.time_ms IS 'The client''s time of the change; the newest wins, of equal ones the larger value by bytes.';
COMMENT ON COLUMN user_settings.signature IS 'Ed25519 by the user''s client key over SHiNE_USER_SETTING:login:name:timeMs:value.';
COMMENT ON COLUMN user_settings.stored_at_ms IS 'This value stored here: the cursor of the pull.';
COMMENT ON COLUMN user_settings.synced IS 'The owner''s second server has acknowledged this value, or it came from there, or there is none.';

-- --- replication ---

CREATE TABLE dm_sync_rejects (
    owner_login   text COLLATE "C" NOT NULL,
    sync_id       text COLLATE "C" NOT NULL,
    peer          text COLLATE "C" NOT NULL,
    reason        text NOT NULL,
    first_seen_ms bigint NOT NULL,
    last_seen_ms  bigint NOT NULL,
    count         bigint NOT NULL,
    PRIMARY KEY (owner_login, sync_id)
) WITH (fillfactor = 70);
CREATE INDEX dm_sync_rejects_seen ON dm_sync_rejects (last_seen_ms);
COMMENT ON TABLE dm_sync_rejects IS 'Items of a second server that were not taken, and are therefore offered in every cycle. A row goes when a cycle no longer brings the item, or by age.';
COMMENT ON COLUMN dm_sync_rejects.owner_login IS 'The owner.';
COMMENT ON COLUMN dm_sync_rejects.sync_id IS 'The item, as the second server names it; it means nothing to us.';
COMMENT ON COLUMN dm_sync_rejects.peer IS 'The second server.';
COMMENT ON COLUMN dm_sync_rejects.reason IS 'Why it was not taken.';
COMMENT ON COLUMN dm_sync_rejects.first_seen_ms IS 'Refused first.';
COMMENT ON COLUMN dm_sync_rejects.last_seen_ms IS 'Refused last.';
COMMENT ON COLUMN dm_sync_rejects.count IS 'How often.';

ALTER TABLE sync_leases ADD COLUMN due_at_ms bigint;
UPDATE sync_leases SET due_at_ms = 0;
COMMENT ON COLUMN sync_leases.due_at_ms IS 'When what the second server holds for the owner is to be fetched next; NULL = it is no longer their second server.';
-- By server first: one owner of each is worked on at a time.
CREATE INDEX sync_leases_due ON sync_leases (server_login, (GREATEST(due_at_ms, lease_until_ms)))
    WHERE due_at_ms IS NOT NULL;

-- --- history ---

ALTER TABLE user_event_heads ADD COLUMN history_with text[];
COMMENT ON COLUMN user_event_heads.history_with IS 'Conversations whose history changed by a page of the second server that is not all applied yet: they go into one event of kind 4 (tell_history()). NULL = none.';
-- Nearly always empty; found again after a puller was killed.
CREATE INDEX user_event_heads_history ON user_event_heads (owner_login) WHERE history_with IS NOT NULL;
COMMENT ON COLUMN user_events.kind IS '1 = a container was stored, 2 = a delivery state changed, 3 = a setting changed, 4 = history of conversations changed.';
COMMENT ON COLUMN user_events.message_key IS 'The stored copy (1), the outgoing key of the delivery row (2), the name of the setting (3), the other parties of the conversations, joined by commas (4).';

-- --- functions whose parameters or columns change; their files create them again ---

DROP FUNCTION IF EXISTS events_since(text[], bigint[], integer, bigint);
DROP FUNCTION IF EXISTS accept_pairs(text, text, text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[], boolean[], text[], bigint[], text[], bigint[], bigint[], bigint[]);
DROP FUNCTION IF EXISTS apply_incoming(text, text, text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[], text[], bigint[], bigint[], bigint[]);
DROP FUNCTION IF EXISTS apply_tombstones(text, text, text[], text[], text[], integer[], bigint[], bigint[], bytea[], bytea[], boolean[], bigint[], bigint[], bigint[], boolean[], text[], bigint[], text[]);
