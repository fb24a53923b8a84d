-- Other servers, and how the processes that are alive are connected to them.

CREATE OR REPLACE VIEW v_peers AS
SELECT coalesce(c.server_login, s.server_login) AS server_login,
       coalesce(c.url, s.url) AS url,
       s.server_login IS NOT NULL AS partner,
       coalesce(s.blocked, false) AS blocked,
       coalesce(c.kind, '') AS process,
       coalesce(c.state, '') AS state,
       coalesce(c.last_error, '') AS last_error,
       coalesce(ms_in_words(n.now - c.last_error_at_ms), '') AS error_ago,
       coalesce(ms_in_words(n.now - c.connected_at_ms), '') AS connected_ago,
       coalesce(ms_in_words(n.now - c.active_at_ms), '') AS active_ago,
       coalesce(ms_in_words(n.now - c.ping_at_ms), '') AS ping_ago,
       coalesce(ms_in_words(n.now - c.pong_at_ms), '') AS pong_ago,
       c.reconnects, c.queued_realtime, c.queued_normal, c.queued_bulk, c.in_flight,
       c.ok, c.failed, c.timed_out, c.late,
       coalesce(ms_in_words(n.now - c.updated_at_ms), '') AS written_ago,
       coalesce(c.process_id, '') AS process_id
FROM (SELECT now_ms() AS now OFFSET 0) n
CROSS JOIN (SELECT p.kind, x.* FROM peer_connections x JOIN processes p USING (process_id)
            WHERE p.heartbeat_at_ms > now_ms() - 30000) c
FULL JOIN sync_servers s ON s.server_login = c.server_login;
COMMENT ON VIEW v_peers IS 'Other servers: one line for each process that has to do with one, and one without a process for partners that nobody has called. Written every few seconds.';
COMMENT ON COLUMN v_peers.server_login IS 'Login of the other server.';
COMMENT ON COLUMN v_peers.url IS 'Address that is dialled. A server that is no partner has a line for each address that users name for it.';
COMMENT ON COLUMN v_peers.partner IS 'It is in sync_servers.';
COMMENT ON COLUMN v_peers.blocked IS 'Blocked there: nothing is sent to it or accepted from it.';
COMMENT ON COLUMN v_peers.process IS 'Kind of process: frontd, deliveryd, syncd.';
COMMENT ON COLUMN v_peers.state IS 'ready; connecting or hello: being dialled; waiting: for its turn to be; backoff: the last dial failed or the connection was lost, the next is not due; idle: nobody calls; blocked; empty: no process has called it.';
COMMENT ON COLUMN v_peers.last_error IS 'What went wrong last, in one word; stays when things are well again.';
COMMENT ON COLUMN v_peers.error_ago IS 'How long ago that was.';
COMMENT ON COLUMN v_peers.connected_ago IS 'Time since it was last ready.';
COMMENT ON COLUMN v_peers.active_ago IS 'Time since the last byte received on the connection there is.';
COMMENT ON COLUMN v_peers.ping_ago IS 'Time since the last ping on it; pings are sent to silent peers only.';
COMMENT ON COLUMN v_peers.pong_ago IS 'Time since one was answered.';
COMMENT ON COLUMN v_peers.reconnects IS 'Times it became ready again.';
COMMENT ON COLUMN v_peers.queued_realtime IS 'Requests waiting: deliveries, deletions, delivery status.';
COMMENT ON COLUMN v_peers.queued_normal IS 'Requests waiting: replication, settings, look-ups of users.';
COMMENT ON COLUMN v_peers.queued_bulk IS 'Requests waiting: the lowest lane.';
COMMENT ON COLUMN v_peers.in_flight IS 'Requests written and not answered yet.';
COMMENT ON COLUMN v_peers.ok IS 'Requests answered with success since the process started.';
COMMENT ON COLUMN v_peers.failed IS 'Requests answered with an error, lost, or not sent.';
COMMENT ON COLUMN v_peers.timed_out IS 'Requests without an answer in time.';
COMMENT ON COLUMN v_peers.late IS 'Answers to nothing that was waited for; dropped.';
COMMENT ON COLUMN v_peers.written_ago IS 'Age of this line.';
COMMENT ON COLUMN v_peers.process_id IS 'The process.';
