-- Signed profiles: a user's own word about their access servers.

CREATE TABLE user_profiles (
    login         text COLLATE "C" PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    record        text NOT NULL,
    time_ms       bigint NOT NULL,
    signature     bytea NOT NULL,
    enc_key_sig   text COLLATE "C",
    stored_at_ms  bigint NOT NULL
);
COMMENT ON TABLE user_profiles IS 'The newest profile that each user has signed (UpsertUserProfile). A newer one replaces it; a row goes with its user, or when the key that signed it turns out to be another''s.';
COMMENT ON COLUMN user_profiles.login IS 'The user.';
COMMENT ON COLUMN user_profiles.record IS 'The fields as they were signed, JSON; told to other servers unchanged.';
COMMENT ON COLUMN user_profiles.time_ms IS 'timeMs of the record: the newest wins.';
COMMENT ON COLUMN user_profiles.signature IS 'Signature of the record, 64 bytes. Of two records of the same time the one with the larger signature wins.';
COMMENT ON COLUMN user_profiles.enc_key_sig IS 'encKeySigB64 of the record; NULL = it carries no encryption key. Decides, the larger one wins, where time and signature are equal: that signature does not cover it.';
COMMENT ON COLUMN user_profiles.stored_at_ms IS 'Stored here.';

-- A user who was added here and has moved away by a profile.
ALTER TABLE users DROP CONSTRAINT users_source_check;
ALTER TABLE users ADD CONSTRAINT users_source_check
    CHECK (source IN ('local', 'partner', 'provisional', 'profile'));
COMMENT ON COLUMN users.source IS 'Where the record came from: local, partner (a server in sync_servers), provisional (the sending server, until a partner answers), profile (was local; the user has signed a profile and moved away).';

-- They gain columns.
DROP FUNCTION IF EXISTS get_user(text);
DROP VIEW IF EXISTS v_users;
