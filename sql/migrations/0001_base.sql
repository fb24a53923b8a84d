-- The base schema: users and servers, sessions and processes, text messages with their delivery
-- rows, the outbox towards the owner's second server, and the event log.
--
-- Conventions. Times are Unix milliseconds of the database's clock (now_ms()). Names, keys and
-- cursors compare by bytes (COLLATE "C"). Tables that grow with messages have keys that begin with
-- the owner's login. Partial indexes hold only rows that still want something.

-- --- users and servers ---

CREATE TABLE users (
    login           text COLLATE "C" PRIMARY KEY,
    client_key      text COLLATE "C" NOT NULL,
    enc_key         text COLLATE "C",
    enc_key_sig     text COLLATE "C",
    source          text NOT NULL CHECK (source IN ('local', 'partner', 'provisional')),
    created_at_ms   bigint NOT NULL,
    refreshed_at_ms bigint NOT NULL
);
COMMENT ON TABLE users IS 'Everybody this server knows: who is served here and who writes with them.';
COMMENT ON COLUMN users.login IS 'Login, [a-z0-9_]{1,30}.';
COMMENT ON COLUMN users.client_key IS 'Current Ed25519 public key of the user, Base64 of 32 bytes.';
COMMENT ON COLUMN users.enc_key IS 'Published X25519 encryption key, Base64; NULL = none.';
COMMENT ON COLUMN users.enc_key_sig IS 'Signature of enc_key by client_key, Base64.';
COMMENT ON COLUMN users.source IS 'Where the record came from: local, partner (a server in sync_servers), provisional (the sending server, until a partner answers).';
COMMENT ON COLUMN users.created_at_ms IS 'First recorded here.';
COMMENT ON COLUMN users.refreshed_at_ms IS 'Last confirmed by its source.';

CREATE TABLE user_keys (
    login         text COLLATE "C" NOT NULL REFERENCES users ON DELETE CASCADE,
    client_key    text COLLATE "C" NOT NULL,
    from_ms       bigint NOT NULL,
    PRIMARY KEY (login, client_key)
);
COMMENT ON TABLE user_keys IS 'Every client key ever accepted for a user; old messages are verified against any of them.';
COMMENT ON COLUMN user_keys.login IS 'The user.';
COMMENT ON COLUMN user_keys.client_key IS 'Ed25519 public key, Base64.';
COMMENT ON COLUMN user_keys.from_ms IS 'Accepted since.';

CREATE TABLE user_access_servers_current (
    login        text COLLATE "C" NOT NULL REFERENCES users ON DELETE CASCADE,
    slot         smallint NOT NULL CHECK (slot IN (1, 2)),
    server_login text COLLATE "C" NOT NULL,
    url          text COLLATE "C" NOT NULL,
    PRIMARY KEY (login, slot),
    UNIQUE (login, server_login)
);
COMMENT ON TABLE user_access_servers_current IS 'The one or two servers that keep a user''s messages now: the routes of every delivery. Change it with set_user_servers(), which also rewrites what depends on it.';
COMMENT ON COLUMN user_access_servers_current.login IS 'The user.';
COMMENT ON COLUMN user_access_servers_current.slot IS '1 or 2, in the user''s order; slot 1 is always filled first.';
COMMENT ON COLUMN user_access_servers_current.server_login IS 'Login of the server.';
COMMENT ON COLUMN user_access_servers_current.url IS 'wss:// address the user names for it; a row in sync_servers overrides it.';

CREATE TABLE sync_servers (
    server_login  text COLLATE "C" PRIMARY KEY,
    url           text COLLATE "C" NOT NULL,
    public_keys   text[] NOT NULL DEFAULT '{}',
    blocked       boolean NOT NULL DEFAULT false,
    origin        text NOT NULL DEFAULT 'operator',
    updated_at_ms bigint NOT NULL
);
COMMENT ON TABLE sync_servers IS 'Partner servers: asked about unknown users, dialled under the address given here. Never a delivery route by themselves.';
COMMENT ON COLUMN sync_servers.server_login IS 'Login of the server.';
COMMENT ON COLUMN sync_servers.url IS 'wss:// address; wins over what users say.';
COMMENT ON COLUMN sync_servers.public_keys IS 'Ed25519 keys the server may prove, Base64; several while it changes keys; empty = unknown.';
COMMENT ON COLUMN sync_servers.blocked IS 'Nothing is accepted from it or sent to it.';
COMMENT ON COLUMN sync_servers.origin IS 'Who wrote the row.';
COMMENT ON COLUMN sync_servers.updated_at_ms IS 'Last change.';

-- --- processes and sessions ---

CREATE TABLE processes (
    process_id      text COLLATE "C" PRIMARY KEY,
    kind            text NOT NULL,
    host            text NOT NULL,
    pid             bigint NOT NULL,
    started_at_ms   bigint NOT NULL,
    heartbeat_at_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE processes IS 'Running daemon processes. One whose heartbeat is older than 30 s counts as dead; after 60 s the next process to start removes it.';
COMMENT ON COLUMN processes.process_id IS 'Fresh for every process start; the owner of leases and connections.';
COMMENT ON COLUMN processes.kind IS 'frontd, deliveryd, syncd.';
COMMENT ON COLUMN processes.host IS 'Host name.';
COMMENT ON COLUMN processes.pid IS 'Process number on that host.';
COMMENT ON COLUMN processes.started_at_ms IS 'When it registered.';
COMMENT ON COLUMN processes.heartbeat_at_ms IS 'Last sign of life, every 10 s.';

CREATE TABLE active_sessions (
    session_id    text COLLATE "C" PRIMARY KEY,
    login         text COLLATE "C" NOT NULL REFERENCES users ON DELETE CASCADE,
    session_key   bytea NOT NULL,
    storage_pwd   text NOT NULL,
    client_info   text,
    event_mode    text NOT NULL CHECK (event_mode IN ('live', 'pts')),
    acked_pts     bigint NOT NULL DEFAULT 0,
    generation    bigint NOT NULL DEFAULT 1,
    connected_to  text COLLATE "C",
    push_endpoint text,
    push_p256dh   text,
    push_auth     text,
    created_at_ms bigint NOT NULL,
    seen_at_ms    bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX active_sessions_login ON active_sessions (login);
COMMENT ON TABLE active_sessions IS 'Sessions (devices) of the users served here, connected or not.';
COMMENT ON COLUMN active_sessions.session_id IS '32 random bytes, Base64 without padding.';
COMMENT ON COLUMN active_sessions.login IS 'Whose session.';
COMMENT ON COLUMN active_sessions.session_key IS 'Ed25519 public key of the device, 32 bytes.';
COMMENT ON COLUMN active_sessions.storage_pwd IS 'Opaque secret of the client, kept for it.';
COMMENT ON COLUMN active_sessions.client_info IS 'What the client says about itself, JSON text.';
COMMENT ON COLUMN active_sessions.event_mode IS 'live: events while connected; pts: resumes from acked_pts.';
COMMENT ON COLUMN active_sessions.acked_pts IS 'Events up to here are acknowledged by the device.';
COMMENT ON COLUMN active_sessions.generation IS 'Counts log-ins; only the newest connection of a session may act for it.';
COMMENT ON COLUMN active_sessions.connected_to IS 'Process (processes.process_id) that holds its connection; NULL = not connected.';
COMMENT ON COLUMN active_sessions.push_endpoint IS 'Web Push subscription: https address; NULL = none.';
COMMENT ON COLUMN active_sessions.push_p256dh IS 'Web Push subscription: public key of the device, Base64.';
COMMENT ON COLUMN active_sessions.push_auth IS 'Web Push subscription: authentication secret, Base64.';
COMMENT ON COLUMN active_sessions.created_at_ms IS 'Created.';
COMMENT ON COLUMN active_sessions.seen_at_ms IS 'Last log-in or disconnect.';

-- --- messages ---

CREATE TABLE signed_messages (
    owner_login       text COLLATE "C" NOT NULL,
    message_key       text COLLATE "C" NOT NULL,
    base_key          text COLLATE "C" NOT NULL,
    from_login        text COLLATE "C" NOT NULL,
    to_login          text COLLATE "C" NOT NULL,
    with_login        text COLLATE "C" NOT NULL
        GENERATED ALWAYS AS (CASE WHEN owner_login = from_login THEN to_login ELSE from_login END) STORED,
    message_type      smallint NOT NULL,
    courier           boolean NOT NULL,
    time_ms           bigint NOT NULL,
    nonce             bigint NOT NULL,
    revision_time_ms  bigint NOT NULL,
    reencrypted_at_ms bigint NOT NULL,
    created_at_ms     bigint NOT NULL,
    stored_at_ms      bigint NOT NULL,
    read_at_ms        bigint,
    digest            bytea NOT NULL,
    blob              bytea NOT NULL,
    PRIMARY KEY (owner_login, message_key)
) WITH (fillfactor = 95, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05,
        autovacuum_vacuum_insert_scale_factor = 0.05);
-- Ciphertext does not compress; trying costs more than the copy.
ALTER TABLE signed_messages ALTER COLUMN blob SET STORAGE EXTERNAL;
-- History pages. Texts only: receipts and tombstones are not mixed into them.
CREATE INDEX signed_messages_history
    ON signed_messages (owner_login, with_login, time_ms, message_key)
    WHERE message_type IN (1, 2) AND NOT courier;
COMMENT ON TABLE signed_messages IS 'Stored copies of signed containers. Incoming copies (odd types) belong to the recipient, outgoing copies to the author.';
COMMENT ON COLUMN signed_messages.owner_login IS 'The user this copy belongs to.';
COMMENT ON COLUMN signed_messages.message_key IS 'base_key|type: names one copy.';
COMMENT ON COLUMN signed_messages.base_key IS 'from|to|timeMs|nonce: names the logical message.';
COMMENT ON COLUMN signed_messages.from_login IS 'Author.';
COMMENT ON COLUMN signed_messages.to_login IS 'The other party.';
COMMENT ON COLUMN signed_messages.with_login IS 'The conversation this copy is part of, seen by its owner.';
COMMENT ON COLUMN signed_messages.message_type IS '1/2 text, 3/4 read receipt, 5/6 delete message, 7/8 delete conversation.';
COMMENT ON COLUMN signed_messages.courier IS 'Kept only to be delivered: this server did not serve the owner when it was stored. Not part of any history.';
COMMENT ON COLUMN signed_messages.time_ms IS 'Client time of the logical message.';
COMMENT ON COLUMN signed_messages.nonce IS 'Random number of the message (32 bits, unsigned).';
COMMENT ON COLUMN signed_messages.revision_time_ms IS 'Time of the edit, 0 = original.';
COMMENT ON COLUMN signed_messages.reencrypted_at_ms IS 'Time of the re-encryption, 0 = never.';
COMMENT ON COLUMN signed_messages.created_at_ms IS 'First stored here.';
COMMENT ON COLUMN signed_messages.stored_at_ms IS 'These bytes stored here.';
COMMENT ON COLUMN signed_messages.read_at_ms IS 'Earliest read time of all receipts for it; NULL = not read.';
COMMENT ON COLUMN signed_messages.digest IS 'SHA-256 of blob.';
COMMENT ON COLUMN signed_messages.blob IS 'The signed bytes as received.';

CREATE TABLE dm_delivery_state (
    from_login         text COLLATE "C" NOT NULL,
    outgoing_key       text COLLATE "C" NOT NULL,
    base_key           text COLLATE "C" NOT NULL,
    incoming_key       text COLLATE "C" NOT NULL,
    to_login           text COLLATE "C" NOT NULL,
    revision_time_ms   bigint NOT NULL,
    reencrypted_at_ms  bigint NOT NULL,
    state              text COLLATE "C" NOT NULL,
    attempt_no         smallint NOT NULL,
    claims             smallint NOT NULL DEFAULT 0,
    accepted_at_ms     bigint NOT NULL,
    next_attempt_at_ms bigint,
    route_hint         text COLLATE "C" NOT NULL,
    lease_owner        text COLLATE "C",
    lease_until_ms     bigint,
    row_version        bigint NOT NULL DEFAULT 1,
    delivered_via      text COLLATE "C",
    last_error         text,
    updated_at_ms      bigint NOT NULL,
    PRIMARY KEY (from_login, outgoing_key)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1);
-- When a waiting row may be claimed: when it is due and nobody holds it. Rows under a live lease
-- sort behind those that are due, so that a claim never wades through them.
CREATE INDEX dm_delivery_state_due
    ON dm_delivery_state ((GREATEST(next_attempt_at_ms, lease_until_ms)))
    WHERE state = 'accepted';
CREATE INDEX dm_delivery_state_waiting_to ON dm_delivery_state (to_login) WHERE state = 'accepted';
COMMENT ON TABLE dm_delivery_state IS 'How far each message of an author got towards its recipient''s servers: one row per pair and per tombstone for both. People read v_delivery.';
COMMENT ON COLUMN dm_delivery_state.from_login IS 'Author.';
COMMENT ON COLUMN dm_delivery_state.outgoing_key IS 'Key of the author''s copy; for a tombstone its own key.';
COMMENT ON COLUMN dm_delivery_state.base_key IS 'from|to|timeMs|nonce.';
COMMENT ON COLUMN dm_delivery_state.incoming_key IS 'Key of the copy to be delivered.';
COMMENT ON COLUMN dm_delivery_state.to_login IS 'Recipient.';
COMMENT ON COLUMN dm_delivery_state.revision_time_ms IS 'Revision of the incoming copy this row is about.';
COMMENT ON COLUMN dm_delivery_state.reencrypted_at_ms IS 'Second half of the revision.';
COMMENT ON COLUMN dm_delivery_state.state IS 'accepted (stored, not confirmed yet), delivered (one recipient server has it), failed (the last attempt brought nothing). The last two are final for the revision.';
COMMENT ON COLUMN dm_delivery_state.attempt_no IS 'The attempt under way, otherwise the one to be made next; on a final row the one that decided.';
COMMENT ON COLUMN dm_delivery_state.claims IS 'Leases in a row that ran out without a result; any result sets it to 0.';
COMMENT ON COLUMN dm_delivery_state.accepted_at_ms IS 'Start of the schedule.';
COMMENT ON COLUMN dm_delivery_state.next_attempt_at_ms IS 'When the next attempt is due; NULL on final rows.';
COMMENT ON COLUMN dm_delivery_state.route_hint IS 'First current server of the recipient, '''' = none: lets claims skip a peer that is at its bound.';
COMMENT ON COLUMN dm_delivery_state.lease_owner IS 'Process making an attempt now.';
COMMENT ON COLUMN dm_delivery_state.lease_until_ms IS 'End of its lease; afterwards anybody may claim the row.';
COMMENT ON COLUMN dm_delivery_state.row_version IS 'Raised by every change; a result is recorded only for the version its attempt began with.';
COMMENT ON COLUMN dm_delivery_state.delivered_via IS 'Server that confirmed.';
COMMENT ON COLUMN dm_delivery_state.last_error IS 'Why the last attempt brought nothing, for people.';
COMMENT ON COLUMN dm_delivery_state.updated_at_ms IS 'Last change.';

-- --- replication ---

CREATE TABLE dm_sync_outbox (
    owner_login         text COLLATE "C" NOT NULL,
    primary_message_key text COLLATE "C" NOT NULL,
    sync_id             text COLLATE "C" NOT NULL,
    stored_at_ms        bigint NOT NULL,
    synced              boolean NOT NULL,
    push_due_at_ms      bigint,
    push_tries          smallint NOT NULL DEFAULT 0,
    lease_owner         text COLLATE "C",
    lease_until_ms      bigint,
    row_version         bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (owner_login, primary_message_key),
    CHECK (NOT synced OR push_due_at_ms IS NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX dm_sync_outbox_page
    ON dm_sync_outbox (owner_login, stored_at_ms, primary_message_key) WHERE NOT synced;
CREATE INDEX dm_sync_outbox_push
    ON dm_sync_outbox ((GREATEST(push_due_at_ms, lease_until_ms))) WHERE push_due_at_ms IS NOT NULL;
COMMENT ON TABLE dm_sync_outbox IS 'What the owner''s second server must have: one row per item. Owners without a second server have no rows.';
COMMENT ON COLUMN dm_sync_outbox.owner_login IS 'Whose second server.';
COMMENT ON COLUMN dm_sync_outbox.primary_message_key IS 'The item: outgoing key of a pair, incoming key of a received copy, key of a tombstone.';
COMMENT ON COLUMN dm_sync_outbox.sync_id IS 'primaryMessageKey:revisionTimeMs:reencryptedAtMs:digest of the item as it is now; an acknowledgement must name it exactly.';
COMMENT ON COLUMN dm_sync_outbox.stored_at_ms IS 'When the item last changed: the cursor of the pull.';
COMMENT ON COLUMN dm_sync_outbox.synced IS 'The second server has acknowledged sync_id, or it came from there.';
COMMENT ON COLUMN dm_sync_outbox.push_due_at_ms IS 'When to hand it over next; NULL = not by push (synced, or waiting for the pull).';
COMMENT ON COLUMN dm_sync_outbox.push_tries IS 'Pushes that failed.';
COMMENT ON COLUMN dm_sync_outbox.lease_owner IS 'Process pushing it now.';
COMMENT ON COLUMN dm_sync_outbox.lease_until_ms IS 'End of its lease.';
COMMENT ON COLUMN dm_sync_outbox.row_version IS 'Raised by every change.';

CREATE TABLE sync_leases (
    owner_login    text COLLATE "C" NOT NULL,
    server_login   text COLLATE "C" NOT NULL,
    mark_from      text COLLATE "C",
    lease_owner    text COLLATE "C",
    lease_until_ms bigint,
    started_at_ms  bigint,
    finished_at_ms bigint,
    moved          bigint,
    result         text,
    PRIMARY KEY (owner_login, server_login)
) WITH (fillfactor = 70);
COMMENT ON TABLE sync_leases IS 'Replication work per owner and second server.';
COMMENT ON COLUMN sync_leases.owner_login IS 'The owner.';
COMMENT ON COLUMN sync_leases.server_login IS 'The owner''s second server.';
COMMENT ON COLUMN sync_leases.mark_from IS 'The second server is new: outbox rows of keys after this one must still be created or marked unsynced; NULL = nothing to do.';
COMMENT ON COLUMN sync_leases.lease_owner IS 'Process working on it.';
COMMENT ON COLUMN sync_leases.lease_until_ms IS 'End of its lease.';
COMMENT ON COLUMN sync_leases.started_at_ms IS 'Last cycle began.';
COMMENT ON COLUMN sync_leases.finished_at_ms IS 'Last cycle ended.';
COMMENT ON COLUMN sync_leases.moved IS 'Items it moved.';
COMMENT ON COLUMN sync_leases.result IS 'How it ended.';

-- --- events ---

CREATE TABLE user_event_heads (
    owner_login text COLLATE "C" PRIMARY KEY,
    epoch       bigint NOT NULL DEFAULT 1,
    last_pts    bigint NOT NULL DEFAULT 0,
    trimmed_pts bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);
COMMENT ON TABLE user_event_heads IS 'End of each served owner''s event log. The row lock orders everything written for the owner: every writer takes it first (lock_heads()).';
COMMENT ON COLUMN user_event_heads.owner_login IS 'The owner.';
COMMENT ON COLUMN user_event_heads.epoch IS 'Raised by the operator after restoring a backup; positions of another epoch mean nothing.';
COMMENT ON COLUMN user_event_heads.last_pts IS 'Position of the newest event; 0 = none yet.';
COMMENT ON COLUMN user_event_heads.trimmed_pts IS 'Events up to here are no longer kept.';

CREATE TABLE user_events (
    owner_login   text COLLATE "C" NOT NULL,
    pts           bigint NOT NULL,
    kind          smallint NOT NULL,
    message_key   text COLLATE "C" NOT NULL,
    created_at_ms bigint NOT NULL,
    PRIMARY KEY (owner_login, pts)
) WITH (fillfactor = 100, autovacuum_vacuum_insert_scale_factor = 0.1);
COMMENT ON TABLE user_events IS 'Event log of each served owner, numbered 1, 2, 3 ... without gaps in commit order. An event refers to the stored row; reading it gives the row as it is now.';
COMMENT ON COLUMN user_events.owner_login IS 'Whose log.';
COMMENT ON COLUMN user_events.pts IS 'Position.';
COMMENT ON COLUMN user_events.kind IS '1 = a container was stored, 2 = a delivery state changed.';
COMMENT ON COLUMN user_events.message_key IS 'The stored copy (1) or the outgoing key of the delivery row (2).';
COMMENT ON COLUMN user_events.created_at_ms IS 'When.';
