-- Connections to other servers, as each process sees its own.
-- compatible_from: 0003

CREATE UNLOGGED TABLE peer_connections (
    process_id       text COLLATE "C" NOT NULL REFERENCES processes ON DELETE CASCADE,
    server_login     text COLLATE "C" NOT NULL,
    url              text COLLATE "C" NOT NULL,
    state            text NOT NULL,
    connected_at_ms  bigint,
    active_at_ms     bigint,
    ping_at_ms       bigint,
    pong_at_ms       bigint,
    reconnects       bigint NOT NULL,
    queued_realtime  bigint NOT NULL,
    queued_normal    bigint NOT NULL,
    queued_bulk      bigint NOT NULL,
    in_flight        bigint NOT NULL,
    ok               bigint NOT NULL,
    failed           bigint NOT NULL,
    timed_out        bigint NOT NULL,
    late             bigint NOT NULL,
    last_error       text NOT NULL,
    last_error_at_ms bigint,
    updated_at_ms    bigint NOT NULL,
    PRIMARY KEY (process_id, server_login, url)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE peer_connections IS 'What each process says about its connections to other servers, every few seconds where something has changed; people read v_peers. A row goes with its process, or when the process has forgotten the peer. Unlogged: after a crash of the database the processes write it again within a minute.';
COMMENT ON COLUMN peer_connections.process_id IS 'Whose connection.';
COMMENT ON COLUMN peer_connections.server_login IS 'Login of the other server.';
COMMENT ON COLUMN peer_connections.url IS 'Address that is dialled: that of sync_servers, or one that users name.';
COMMENT ON COLUMN peer_connections.state IS 'idle, waiting (for its turn to dial), connecting, hello, ready, backoff, blocked.';
COMMENT ON COLUMN peer_connections.connected_at_ms IS 'When it was last ready; NULL = never.';
COMMENT ON COLUMN peer_connections.active_at_ms IS 'Last byte received on the connection there is; NULL = there is none.';
COMMENT ON COLUMN peer_connections.ping_at_ms IS 'Last ping on it; NULL = none.';
COMMENT ON COLUMN peer_connections.pong_at_ms IS 'Last answer to a ping on it; NULL = none.';
COMMENT ON COLUMN peer_connections.reconnects IS 'Times it became ready again.';
COMMENT ON COLUMN peer_connections.queued_realtime IS 'Requests waiting: deliveries, deletions, delivery status.';
COMMENT ON COLUMN peer_connections.queued_normal IS 'Requests waiting: replication, settings, look-ups of users.';
COMMENT ON COLUMN peer_connections.queued_bulk IS 'Requests waiting: the lowest lane.';
COMMENT ON COLUMN peer_connections.in_flight IS 'Requests written and not answered yet.';
COMMENT ON COLUMN peer_connections.ok IS 'Requests answered with success since the process started.';
COMMENT ON COLUMN peer_connections.failed IS 'Requests answered with an error, lost, or not sent.';
COMMENT ON COLUMN peer_connections.timed_out IS 'Requests without an answer in time.';
COMMENT ON COLUMN peer_connections.late IS 'Answers to nothing that was waited for; dropped.';
COMMENT ON COLUMN peer_connections.last_error IS 'What went wrong last, in one word; stays when things are well again.';
COMMENT ON COLUMN peer_connections.last_error_at_ms IS 'When; NULL = never.';
COMMENT ON COLUMN peer_connections.updated_at_ms IS 'When the row was written.';

-- The addresses of one server, and the servers that there are, without reading every user.
DROP INDEX user_access_servers_current_server;
CREATE INDEX user_access_servers_current_server ON user_access_servers_current (server_login, url);
