-- How far the second servers of our users are behind.

CREATE OR REPLACE VIEW v_sync_backlog AS
WITH dms AS (
    SELECT o.owner_login, count(*) AS n, min(o.stored_at_ms) AS oldest_ms,
           min(GREATEST(o.push_due_at_ms, o.lease_until_ms)) AS push_ms,
           count(*) FILTER (WHERE o.push_due_at_ms IS NULL) AS by_pull
    FROM dm_sync_outbox o WHERE NOT o.synced GROUP BY o.owner_login),
settings AS (
    SELECT u.login AS owner_login, count(*) AS n, min(u.stored_at_ms) AS oldest_ms
    FROM user_settings u WHERE NOT u.synced GROUP BY u.login),
marks AS (SELECT owner_login, server_login FROM sync_leases WHERE mark_from IS NOT NULL),
rejects AS (
    SELECT owner_login, peer, count(*) AS n FROM dm_sync_rejects GROUP BY owner_login, peer),
owners AS (
    SELECT owner_login FROM dms UNION SELECT owner_login FROM settings
    UNION SELECT owner_login FROM marks UNION SELECT owner_login FROM rejects)
SELECT o.owner_login,
       coalesce((SELECT string_agg(l.server_login, ', ' ORDER BY l.server_login) FROM sync_leases l
                 JOIN user_access_servers_current a ON a.login = l.owner_login AND a.server_login = l.server_login
                 WHERE l.owner_login = o.owner_login),
                (SELECT string_agg(a.server_login, ', ' ORDER BY a.slot) FROM user_access_servers_current a
                 WHERE a.login = o.owner_login), '') AS peer,
       coalesce(d.n, 0) AS messages, coalesce(d.by_pull, 0) AS by_pull, coalesce(s.n, 0) AS settings,
       coalesce(ms_in_words(now_ms() - LEAST(d.oldest_ms, s.oldest_ms)), '') AS oldest,
       CASE WHEN d.n > 0 THEN due_in_words(d.push_ms) ELSE '' END AS next_push,
       EXISTS (SELECT FROM marks m WHERE m.owner_login = o.owner_login) AS filling,
       coalesce((SELECT sum(r.n) FROM rejects r WHERE r.owner_login = o.owner_login), 0)::bigint AS rejected
FROM owners o
LEFT JOIN dms d USING (owner_login)
LEFT JOIN settings s USING (owner_login);
COMMENT ON VIEW v_sync_backlog IS 'What the second servers of our users lack, one line per owner who waits for something; and what was refused of theirs. Costs what is unsynced, whatever is stored.';
COMMENT ON COLUMN v_sync_backlog.owner_login IS 'The owner.';
COMMENT ON COLUMN v_sync_backlog.peer IS 'The owner''s second server; the current servers of somebody who is no longer served here.';
COMMENT ON COLUMN v_sync_backlog.messages IS 'Items (pairs, incoming copies, tombstones) it has not acknowledged.';
COMMENT ON COLUMN v_sync_backlog.by_pull IS 'Of these: no push is planned any more, it has to fetch them.';
COMMENT ON COLUMN v_sync_backlog.settings IS 'Settings it has not acknowledged.';
COMMENT ON COLUMN v_sync_backlog.oldest IS 'Age of the oldest of all these; empty = none.';
COMMENT ON COLUMN v_sync_backlog.next_push IS 'When the next message is handed over: "in 24 s", "now", "never" (it waits for the pull); empty = no message waits.';
COMMENT ON COLUMN v_sync_backlog.filling IS 'Housekeeping has still to mark messages: the second server is new, or everything is to be offered again.';
COMMENT ON COLUMN v_sync_backlog.rejected IS 'Items of the second server that were refused here (dm_sync_rejects).';
