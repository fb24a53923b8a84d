-- Housekeeping, and the results of pushes.
\ir support.psql
SELECT plan(21);
SELECT make_users();

-- event logs
INSERT INTO users SELECT u, 'key', NULL, NULL, 'local', 0, 0 FROM unnest('{o1,o2,o3}'::text[]) u ON CONFLICT DO NOTHING;
INSERT INTO user_event_heads (owner_login, last_pts) VALUES ('o1', 10), ('o2', 10), ('o3', 0);
INSERT INTO user_events (owner_login, pts, kind, message_key, created_at_ms)
SELECT o, p, 1, 'k', CASE WHEN o = 'o1' AND p <= 4 THEN now_ms() - 100000 ELSE now_ms() END FROM unnest('{o1,o2}'::text[]) o, generate_series(1, 10) p;
CREATE FUNCTION kept(o text) RETURNS text LANGUAGE sql AS $$ SELECT min(pts) || '-' || max(pts) || '/' || (SELECT trimmed_pts FROM user_event_heads WHERE owner_login = o) FROM user_events WHERE owner_login = o $$;
SELECT is((SELECT did FROM trim_events('', 100, 50000, 100, 1000)), 4::bigint, 'old events go');
SELECT is(kept('o1'), '5-10/4', 'and the head knows');
SELECT is(kept('o2'), '1-10/0', 'others stay');
SELECT is((SELECT did FROM trim_events('', 100, 50000, 100, 1000)), 0::bigint, 'once');
SELECT is((SELECT did FROM trim_events('', 100, 50000, 7, 1000)), 3::bigint, 'the cap of one owner');
SELECT is(kept('o2'), '4-10/3', 'keeps the newest');
SELECT is((SELECT did || coalesce(last, '-') FROM trim_events('', 1000, 50000, 5, 1)), '1o1', 'a bounded piece tells where to go on');
SELECT is((SELECT last FROM trim_events('o3', 1000, 50000, 5, 1000)), NULL, 'the last user ends it');
SELECT is((SELECT last FROM trim_events('', 1, 50000, 100, 1000) ), (SELECT min(owner_login) FROM user_event_heads), 'some users at a time');

-- notes
INSERT INTO dm_sync_rejects (owner_login, sync_id, peer, reason, first_seen_ms, last_seen_ms, count) SELECT 'o1', 's' || i, 'p', 'r', 0, CASE WHEN i < 4 THEN 0 ELSE now_ms() END, 1 FROM generate_series(1, 5) i;
SELECT is(forget_rejects(1000, 2), 2::bigint, 'some at a time');
SELECT is(forget_rejects(1000, 100), 1::bigint, 'the rest of the old ones');
SELECT is((SELECT count(*) FROM dm_sync_rejects), 2::bigint, 'the others stay');

-- pushes
INSERT INTO dm_sync_outbox (owner_login, primary_message_key, sync_id, stored_at_ms, synced, push_due_at_ms) SELECT 'two', 'two|x|1|' || i || '|2', 'two|x|1|' || i || '|2:0:0:x', 0, false, now_ms() - 1 FROM generate_series(1, 4) i;
CREATE FUNCTION version(i integer) RETURNS bigint LANGUAGE sql AS $$ SELECT row_version FROM dm_sync_outbox WHERE owner_login = 'two' AND primary_message_key = 'two|x|1|' || i || '|2' $$;
CREATE FUNCTION pushed(i integer, outcome integer, v bigint, id text DEFAULT NULL, who text DEFAULT 'p1') RETURNS boolean LANGUAGE sql AS $$
    SELECT recorded FROM finish_pushes(who, '{two}', ARRAY['two|x|1|' || i || '|2'], ARRAY[coalesce(id, 'two|x|1|' || i || '|2:0:0:x')], ARRAY[v], ARRAY[outcome], '{500}') $$;
SELECT is((SELECT count(*) FROM claim_pushes('home', 'p1', 10, 100000, 45000, '{}') WHERE owner_login IS NOT NULL AND second = 'other'), 4::bigint, 'claimed, with the second server');
SELECT is((SELECT count(*) FROM claim_pushes('home', 'p2', 10, 100000, 45000, '{}') WHERE owner_login IS NOT NULL), 0::bigint, 'once');
SELECT ok(pushed(1, 2, version(1)) AND pushed(2, 2, version(2)) AND pushed(3, 3, version(3)), 'failed, and given back');
SELECT is((SELECT string_agg(push_tries || ':' || round((push_due_at_ms - now_ms()) / 1000.0)::text, ' ' ORDER BY primary_message_key) FROM dm_sync_outbox WHERE owner_login = 'two' AND lease_owner IS NULL),
          '1:30 1:30 0:1', 'the schedule of those that failed');
SELECT ok(NOT pushed(4, 2, version(4) - 1) AND NOT pushed(4, 2, version(4), who => 'p2'), 'not for another version or lease');
SELECT ok(NOT pushed(4, 1, version(4), 'two|x|1|4|2:9:0:y'), 'an acknowledgement of other bytes says nothing');
SELECT ok(pushed(4, 1, 0, who => 'p2'), 'one of these holds whoever has the row');
SELECT ok((SELECT synced AND push_due_at_ms IS NULL FROM dm_sync_outbox WHERE owner_login = 'two' AND primary_message_key = 'two|x|1|4|2'), 'synced');
SELECT is((SELECT count(*) FROM dm_sync_outbox WHERE owner_login = 'two' AND push_tries = 1 AND push_due_at_ms <= now_ms()), 2::bigint, 'and what failed before is due');
SELECT * FROM finish();
