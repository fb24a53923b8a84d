-- Receipts and tombstones beside texts, conversations, and the roles that daemons and people use.

-- --- receipts ---

ALTER TABLE signed_messages ADD COLUMN ref_time_ms bigint, ADD COLUMN ref_nonce bigint;
COMMENT ON COLUMN signed_messages.ref_time_ms IS 'Receipts: time of the text that was read, written by to_login to from_login; NULL for other types.';
COMMENT ON COLUMN signed_messages.ref_nonce IS 'Receipts: nonce of that text.';
COMMENT ON TABLE signed_messages IS 'Stored copies of signed containers. Incoming copies (odd types) belong to the recipient, outgoing copies to the author, tombstones to each party served here. Rows go when a tombstone covers them; tombstones stay.';
-- A tombstone takes the receipts along that reference what it covers.
CREATE INDEX signed_messages_receipts
    ON signed_messages (owner_login, with_login, ref_time_ms, ref_nonce) WHERE message_type IN (3, 4);
-- And the courier copies, which are in no history.
CREATE INDEX signed_messages_courier
    ON signed_messages (owner_login, with_login, time_ms) WHERE message_type = 1 AND courier;

-- Nearly always empty: a text that is stored carries its read time itself.
CREATE TABLE read_marks (
    owner_login text COLLATE "C" NOT NULL,
    with_login  text COLLATE "C" NOT NULL,
    time_ms     bigint NOT NULL,
    text_key    text COLLATE "C" NOT NULL,
    read_at_ms  bigint NOT NULL,
    PRIMARY KEY (owner_login, with_login, time_ms, text_key)
) WITH (fillfactor = 80);
COMMENT ON TABLE read_marks IS 'Read times of texts whose receipt came before them. A row goes when the text is stored (signed_messages.read_at_ms has it then) or a tombstone covers the text.';
COMMENT ON COLUMN read_marks.owner_login IS 'Owner of the copy that was read.';
COMMENT ON COLUMN read_marks.with_login IS 'The other party.';
COMMENT ON COLUMN read_marks.time_ms IS 'Time of the text.';
COMMENT ON COLUMN read_marks.text_key IS 'Message key of the copy: the author''s outgoing or the reader''s incoming one.';
COMMENT ON COLUMN read_marks.read_at_ms IS 'Earliest read time of all receipts for it.';

-- --- tombstones ---

CREATE TABLE message_tombstones (
    owner_login text COLLATE "C" NOT NULL,
    base_key    text COLLATE "C" NOT NULL,
    for_both    boolean NOT NULL,
    PRIMARY KEY (owner_login, base_key)
) WITH (fillfactor = 95);
COMMENT ON TABLE message_tombstones IS 'Single texts that were deleted, for each owner who holds the tombstone here: they are not stored again, and neither are receipts for them. Rows are never removed.';
COMMENT ON COLUMN message_tombstones.owner_login IS 'Who holds it: author of the tombstone, or, if it is for both, the other party too.';
COMMENT ON COLUMN message_tombstones.base_key IS 'The text: from|to|timeMs|nonce.';
COMMENT ON COLUMN message_tombstones.for_both IS 'Both copies are covered, whoever of the two wrote the tombstone; false: only those of this owner.';

CREATE TABLE conversation_tombstones (
    owner_login   text COLLATE "C" NOT NULL,
    with_login    text COLLATE "C" NOT NULL,
    both_until_ms bigint,
    own_until_ms  bigint,
    PRIMARY KEY (owner_login, with_login)
) WITH (fillfactor = 70);
COMMENT ON TABLE conversation_tombstones IS 'Up to when conversations were deleted, for each owner who holds the tombstones here: older texts and receipts for them are not stored again. Rows are never removed.';
COMMENT ON COLUMN conversation_tombstones.owner_login IS 'Who holds it: author of the tombstone, or, if it is for both, the other party too.';
COMMENT ON COLUMN conversation_tombstones.with_login IS 'The other party.';
COMMENT ON COLUMN conversation_tombstones.both_until_ms IS 'Both copies of texts up to this time are covered; NULL = none.';
COMMENT ON COLUMN conversation_tombstones.own_until_ms IS 'This owner''s copies of texts up to this time are covered; NULL = none.';

-- What lets the write path of people who never deleted anything do without looking.
ALTER TABLE user_event_heads ADD COLUMN has_tombstones boolean NOT NULL DEFAULT false,
                             ADD COLUMN has_marks boolean NOT NULL DEFAULT false;
COMMENT ON TABLE user_event_heads IS 'End of each served owner''s event log. The row lock orders everything written for the owner: every writer takes it first (lock_heads()). Rows are never removed.';
COMMENT ON COLUMN user_event_heads.has_tombstones IS 'message_tombstones or conversation_tombstones hold rows of this owner.';
COMMENT ON COLUMN user_event_heads.has_marks IS 'read_marks holds or has held rows of this owner.';

-- --- conversations ---

-- No index by time: it would cost every message a new index entry, and a list reads the rows of one
-- owner, of whom most have fewer than a page of them.
CREATE TABLE conversations (
    owner_login      text COLLATE "C" NOT NULL,
    with_login       text COLLATE "C" NOT NULL,
    last_message_key text COLLATE "C",
    last_time_ms     bigint,
    unread_count     integer NOT NULL DEFAULT 0,
    last_read_at_ms  bigint,
    PRIMARY KEY (owner_login, with_login)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE conversations IS 'One row per owner and other party, kept in step with every text, receipt and tombstone. A row whose texts are all deleted stays without a last message and is listed no more; rows are never removed.';
COMMENT ON COLUMN conversations.owner_login IS 'Whose list.';
COMMENT ON COLUMN conversations.with_login IS 'The other party; the owner for notes to self.';
COMMENT ON COLUMN conversations.last_message_key IS 'The newest text by (time_ms, message_key); NULL = it holds no text.';
COMMENT ON COLUMN conversations.last_time_ms IS 'Its time.';
COMMENT ON COLUMN conversations.unread_count IS 'Incoming texts without a read time; notes to self are never unread.';
COMMENT ON COLUMN conversations.last_read_at_ms IS 'Latest read time of all receipts this owner ever wrote here, also for texts deleted since; NULL = none.';

INSERT INTO conversations (owner_login, with_login, last_message_key, last_time_ms, unread_count)
SELECT DISTINCT ON (owner_login, with_login) owner_login, with_login, message_key, time_ms,
       count(*) FILTER (WHERE message_type = 1 AND from_login <> to_login AND read_at_ms IS NULL)
           OVER (PARTITION BY owner_login, with_login)
FROM signed_messages WHERE message_type IN (1, 2) AND NOT courier
ORDER BY owner_login, with_login, time_ms DESC, message_key DESC;

-- --- what removes the rows of the other tables ---

COMMENT ON TABLE dm_delivery_state IS 'How far each message of an author got towards its recipient''s servers: one row per pair and per tombstone for both. People read v_delivery. A row goes when tombstones have removed both copies of its message; rows of tombstones stay.';
COMMENT ON TABLE dm_sync_outbox IS 'What the owner''s second server must have: one row per item. Owners without a second server have no rows. A row goes when a tombstone removes the copy it is named after.';
COMMENT ON TABLE user_events IS 'Event log of each served owner, numbered 1, 2, 3 ... without gaps in commit order. An event refers to the stored row; reading it gives the row as it is now. Old rows are trimmed by age and number.';
COMMENT ON TABLE users IS 'Everybody this server knows: who is served here and who writes with them. Rows are removed by nobody.';
COMMENT ON TABLE sync_servers IS 'Partner servers: asked about unknown users, dialled under the address given here. Never a delivery route by themselves. Only operators remove rows.';
COMMENT ON TABLE active_sessions IS 'Sessions (devices) of the users served here, connected or not. A row goes when the user closes the session.';
COMMENT ON TABLE user_keys IS 'Every client key ever accepted for a user; old messages are verified against any of them. Rows go with their user only.';
COMMENT ON TABLE user_access_servers_current IS 'The one or two servers that keep a user''s messages now: the routes of every delivery. Change it with set_user_servers(), which replaces the rows and rewrites what depends on them.';
COMMENT ON TABLE sync_leases IS 'Replication work per owner and second server. Rows stay; they are few.';

-- --- functions and views whose parameters or columns change; their files create them again ---

DROP FUNCTION IF EXISTS lock_heads(text, text[]);
DROP FUNCTION IF EXISTS apply_copies(bigint, integer, boolean[], boolean[], text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[]);
DROP FUNCTION IF EXISTS accept_pairs(text, text, text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[], boolean[], text[], bigint[], text[]);
DROP FUNCTION IF EXISTS apply_incoming(text, text, text[], text[], text[], integer[], bigint[], bigint[], bigint[], bigint[], bytea[], bytea[], text[]);
DROP VIEW IF EXISTS v_delivery;
