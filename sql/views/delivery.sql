-- What an operator asks first: where is the message?

CREATE OR REPLACE VIEW v_delivery AS
SELECT d.from_login, d.to_login, w.what, d.state,
       d.attempt_no AS attempt,
       due_in_words(d.next_attempt_at_ms) AS next_attempt,
       CASE WHEN d.lease_owner IS NULL THEN ''
            WHEN d.lease_until_ms > now_ms()
            THEN d.lease_owner || ' for ' || ms_in_words(d.lease_until_ms - now_ms())
            ELSE d.lease_owner || ' ran out ' || ms_in_words(now_ms() - d.lease_until_ms) || ' ago'
       END AS lease,
       coalesce(d.last_error, '') AS last_error,
       coalesce(d.delivered_via, '') AS delivered_via,
       ms_in_words(now_ms() - d.accepted_at_ms) AS accepted_ago,
       ms_in_words(now_ms() - d.updated_at_ms) AS changed_ago,
       d.route_hint, d.claims, d.revision_time_ms, d.reencrypted_at_ms, d.row_version,
       d.base_key, d.outgoing_key, d.incoming_key
FROM dm_delivery_state d,
     LATERAL (SELECT CASE right(d.outgoing_key, 1) WHEN '2' THEN 'text' WHEN '4' THEN 'receipt'
                          WHEN '5' THEN 'delete message' WHEN '7' THEN 'delete conversation' END AS what) w;
COMMENT ON VIEW v_delivery IS 'One line per message: who to whom, how far it got, when it is tried next. Ask with from_login and outgoing_key, or from_login alone.';
COMMENT ON COLUMN v_delivery.from_login IS 'Author.';
COMMENT ON COLUMN v_delivery.to_login IS 'Recipient.';
COMMENT ON COLUMN v_delivery.what IS 'text, receipt, delete message or delete conversation.';
COMMENT ON COLUMN v_delivery.state IS 'accepted, delivered or failed.';
COMMENT ON COLUMN v_delivery.attempt IS 'The attempt under way or to be made next; on a final row the one that decided.';
COMMENT ON COLUMN v_delivery.next_attempt IS 'When: "in 24 s", "now", "overdue 3 s", "never".';
COMMENT ON COLUMN v_delivery.lease IS 'Process making an attempt and how long it may; empty = nobody.';
COMMENT ON COLUMN v_delivery.last_error IS 'Why the last attempt brought nothing.';
COMMENT ON COLUMN v_delivery.delivered_via IS 'Server that confirmed.';
COMMENT ON COLUMN v_delivery.accepted_ago IS 'Time since acceptance, where the schedule starts.';
COMMENT ON COLUMN v_delivery.changed_ago IS 'Time since the last change of the row.';
COMMENT ON COLUMN v_delivery.route_hint IS 'First current server of the recipient.';
COMMENT ON COLUMN v_delivery.claims IS 'Leases in a row that ran out without a result.';
COMMENT ON COLUMN v_delivery.revision_time_ms IS 'Revision the row is about.';
COMMENT ON COLUMN v_delivery.reencrypted_at_ms IS 'Second half of the revision.';
COMMENT ON COLUMN v_delivery.row_version IS 'Raised by every change.';
COMMENT ON COLUMN v_delivery.base_key IS 'from|to|timeMs|nonce.';
COMMENT ON COLUMN v_delivery.outgoing_key IS 'Key of the row.';
COMMENT ON COLUMN v_delivery.incoming_key IS 'Key of the copy to be delivered.';

-- Counts every row, so its cost grows with what is stored: for people, not for dashboards that ask
-- every second.
CREATE OR REPLACE VIEW v_delivery_summary AS
SELECT CASE WHEN d.state = 'accepted' THEN d.route_hint ELSE coalesce(d.delivered_via, d.route_hint) END AS peer,
       count(*) FILTER (WHERE d.state = 'accepted') AS accepted,
       count(*) FILTER (WHERE d.state = 'delivered') AS delivered,
       count(*) FILTER (WHERE d.state = 'failed') AS failed,
       count(*) FILTER (WHERE d.state = 'accepted' AND d.lease_until_ms > n.now) AS under_way,
       count(*) FILTER (WHERE d.state = 'accepted' AND GREATEST(d.next_attempt_at_ms, d.lease_until_ms) <= n.now)
           AS due,
       coalesce(ms_in_words(n.now - min(GREATEST(d.next_attempt_at_ms, d.lease_until_ms))
           FILTER (WHERE d.state = 'accepted'
                   AND GREATEST(d.next_attempt_at_ms, d.lease_until_ms) <= n.now)), '') AS oldest_due,
       coalesce(ms_in_words(n.now - min(d.accepted_at_ms) FILTER (WHERE d.state = 'accepted')), '')
           AS oldest_accepted
FROM dm_delivery_state d, (SELECT now_ms() AS now OFFSET 0) n
GROUP BY 1, n.now;
COMMENT ON VIEW v_delivery_summary IS 'Deliveries by peer: how many wait, are delivered, have failed, and how late the latest one is. Counts all rows; sum it up for totals.';
COMMENT ON COLUMN v_delivery_summary.peer IS 'First server of the recipient, or the one that confirmed; this server itself for local messages, empty for recipients without a server.';
COMMENT ON COLUMN v_delivery_summary.accepted IS 'Not confirmed yet.';
COMMENT ON COLUMN v_delivery_summary.delivered IS 'Confirmed.';
COMMENT ON COLUMN v_delivery_summary.failed IS 'The last attempt brought nothing.';
COMMENT ON COLUMN v_delivery_summary.under_way IS 'Of the accepted: an attempt is being made.';
COMMENT ON COLUMN v_delivery_summary.due IS 'Of the accepted: an attempt could be made now.';
COMMENT ON COLUMN v_delivery_summary.oldest_due IS 'How long the oldest of these has been due; empty = none.';
COMMENT ON COLUMN v_delivery_summary.oldest_accepted IS 'Age of the oldest that is accepted; empty = none.';

CREATE OR REPLACE VIEW v_delivery_stuck AS
SELECT from_login, to_login, outgoing_key, claims, attempt, lease, last_error, accepted_ago
FROM v_delivery WHERE state = 'accepted' AND claims >= 10;
COMMENT ON VIEW v_delivery_stuck IS 'Rows set aside: ten leases in a row ran out on them, so they may be what kills their worker. They come alone, once in ten minutes; shinectl delivery release KEY lets one go at once.';
COMMENT ON COLUMN v_delivery_stuck.from_login IS 'Author.';
COMMENT ON COLUMN v_delivery_stuck.to_login IS 'Recipient.';
COMMENT ON COLUMN v_delivery_stuck.outgoing_key IS 'Key of the row.';
COMMENT ON COLUMN v_delivery_stuck.claims IS 'Leases in a row that ran out.';
COMMENT ON COLUMN v_delivery_stuck.attempt IS 'The attempt that is not made.';
COMMENT ON COLUMN v_delivery_stuck.lease IS 'The last lease.';
COMMENT ON COLUMN v_delivery_stuck.last_error IS 'Why the last attempt that ended brought nothing.';
COMMENT ON COLUMN v_delivery_stuck.accepted_ago IS 'Time since acceptance.';
