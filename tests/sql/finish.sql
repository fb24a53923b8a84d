-- finish_attempts: the lease rule, the schedule, late successes, what the author is told.
\ir support.psql
SELECT plan(33);
SELECT make_users();
CREATE FUNCTION row_of(k text) RETURNS TABLE (state text, attempt int, since bigint, lease text, version bigint, via text, error text)
LANGUAGE sql AS $$ SELECT d.state::text, attempt_no::int, next_attempt_at_ms - accepted_at_ms, lease_owner COLLATE "default", row_version, delivered_via::text, last_error
                   FROM dm_delivery_state d WHERE outgoing_key = k $$;
SELECT send(VARIADIC (SELECT array_agg(msg('alice','far', i)) FROM generate_series(1, 20) i));

-- Success
SELECT results_eq($$SELECT recorded, state, from_pts FROM finish('alice|far|1000|1|2', 1, 1, 'x')$$, $$VALUES (true, 'delivered', 21::bigint)$$, 'delivered, and the author is told');
SELECT results_eq($$SELECT * FROM row_of('alice|far|1000|1|2')$$, $$VALUES ('delivered', 1, NULL::bigint, NULL, 2::bigint, 'x', NULL)$$, 'the row is final');
SELECT results_eq($$SELECT kind::int, message_key COLLATE "default" FROM user_events WHERE owner_login = 'alice' AND pts = 21$$, $$VALUES (2, 'alice|far|1000|1|2')$$, 'by a state event');
SELECT results_eq($$SELECT recorded, state, from_pts FROM finish('alice|far|1000|1|2', 1, 1, 'y')$$, $$VALUES (false, 'delivered', 0::bigint)$$, 'a second success changes nothing');
SELECT results_eq($$SELECT recorded, state FROM finish('alice|far|1000|1|2', 2, 2, error => 'late')$$, $$VALUES (false, 'delivered')$$, 'nor does a late failure');

-- Failure
SELECT move_clock(2000);
SELECT results_eq($$SELECT recorded, state, from_pts FROM finish('alice|far|1000|2|2', 1, 2, error => 'x: refused')$$, $$VALUES (true, 'accepted', 0::bigint)$$, 'failed: goes on, nobody is told');
SELECT results_eq($$SELECT * FROM row_of('alice|far|1000|2|2')$$, $$VALUES ('accepted', 2, 30000::bigint, NULL, 2::bigint, NULL, 'x: refused')$$, 'next attempt 30 s after acceptance, lease released');
SELECT results_eq($$SELECT recorded FROM finish('alice|far|1000|2|2', 2, 2)$$, $$VALUES (false)$$, 'without a lease nothing is recorded');

-- The whole schedule
CREATE FUNCTION lease(k text, p text DEFAULT 'p1') RETURNS bigint LANGUAGE sql AS $$
    UPDATE dm_delivery_state SET lease_owner = p, lease_until_ms = now_ms() + 45000, row_version = row_version + 1 WHERE outgoing_key = k RETURNING row_version $$;
SELECT finish('alice|far|1000|2|2', lease('alice|far|1000|2|2'), 2);
SELECT results_eq($$SELECT attempt, since FROM row_of('alice|far|1000|2|2')$$, $$VALUES (3, 300000::bigint)$$, '5 min');
SELECT finish('alice|far|1000|2|2', lease('alice|far|1000|2|2'), 2);
SELECT results_eq($$SELECT attempt, since FROM row_of('alice|far|1000|2|2')$$, $$VALUES (4, 1500000::bigint)$$, '25 min');
SELECT finish('alice|far|1000|2|2', lease('alice|far|1000|2|2'), 2);
SELECT results_eq($$SELECT attempt, since FROM row_of('alice|far|1000|2|2')$$, $$VALUES (5, 3600000::bigint)$$, '1 h');
SELECT results_eq($$SELECT recorded, state, from_pts > 0 FROM finish('alice|far|1000|2|2', lease('alice|far|1000|2|2'), 2, error => 'gone')$$, $$VALUES (true, 'failed', true)$$, 'then failed, and the author is told');
SELECT results_eq($$SELECT * FROM row_of('alice|far|1000|2|2')$$, $$VALUES ('failed', 5, NULL::bigint, NULL, 10::bigint, NULL, 'gone')$$, 'final, with the reason');
SELECT results_eq($$SELECT recorded, state FROM finish('alice|far|1000|2|2', 10, 1, 'x')$$, $$VALUES (false, 'failed')$$, 'failed is final even for a success');
SELECT results_eq($$SELECT recorded, state FROM finish_attempts('home','p1','{alice}','{alice|far|1000|3|2}','{0}','{0}','{1}','{2}','{""}','{""}','{0}','{0,7000}')$$, $$VALUES (true, 'accepted')$$, 'another schedule');
SELECT results_eq($$SELECT attempt, since FROM row_of('alice|far|1000|3|2')$$, $$VALUES (2, 7000::bigint)$$, 'is followed');

-- Given back
SELECT results_eq($$SELECT recorded, state FROM finish('alice|far|1000|4|2', 1, 3, error => 'queue full', retry => 5000)$$, $$VALUES (true, 'accepted')$$, 'given back');
SELECT results_eq($$SELECT attempt, since, lease FROM row_of('alice|far|1000|4|2')$$, $$VALUES (1, 7000::bigint, NULL)$$, 'the slot is not used, due again after the time named');
SELECT finish('alice|far|1000|5|2', 1, 3, retry => 3600000), finish('alice|far|1000|6|2', 1, 3, retry => -1);
SELECT results_eq($$SELECT since FROM row_of('alice|far|1000|5|2') UNION ALL SELECT since FROM row_of('alice|far|1000|6|2')$$, $$VALUES (62000::bigint), (2000)$$, 'at most 60 s, at least now');

-- Whose lease
SELECT results_eq($$SELECT recorded FROM finish('alice|far|1000|7|2', 1, 2, process => 'p2')$$, $$VALUES (false)$$, 'somebody else''s lease');
SELECT results_eq($$SELECT recorded FROM finish('alice|far|1000|7|2', 2, 2)$$, $$VALUES (false)$$, 'another row version');
SELECT results_eq($$SELECT recorded FROM finish('alice|far|1000|7|2', 1, 2, rev => 3)$$, $$VALUES (false)$$, 'another revision');
SELECT results_eq($$SELECT recorded FROM finish('alice|far|1000|7|2', 1, 1, rev => 3)$$, $$VALUES (false)$$, 'even for a success');
SELECT move_clock(28000);
SELECT results_eq($$SELECT recorded FROM finish('alice|far|1000|7|2', 1, 2)$$, $$VALUES (false)$$, 'a lease that has run out');
SELECT results_eq($$SELECT recorded, state FROM finish('alice|far|1000|7|2', 1, 1, 'y')$$, $$VALUES (true, 'delivered')$$, 'a success counts after a lost lease');
SELECT lease('alice|far|1000|8|2', 'p9');
SELECT results_eq($$SELECT recorded, state FROM finish('alice|far|1000|8|2', 1, 1, 'y')$$, $$VALUES (true, 'delivered')$$, 'and over somebody else''s lease');
SELECT results_eq($$SELECT recorded, state, from_pts FROM finish('alice|far|1000|99|2', 1, 1)$$, $$VALUES (false, NULL, 0::bigint)$$, 'a row that is gone');

-- Batches
SELECT results_eq($$SELECT ord, recorded, state FROM finish_attempts('home','p1','{alice,alice,alice,alice}',
        '{alice|far|1000|9|2,alice|far|1000|10|2,alice|far|1000|9|2,alice|far|1000|9|2}','{0,0,0,0}','{0,0,0,0}','{1,1,1,1}','{2,1,1,2}','{"",x,y,""}','{a,"","",b}','{0,0,0,0}') ORDER BY ord$$,
    $$VALUES (1, false, 'accepted'), (2, true, 'delivered'), (3, true, 'delivered'), (4, false, 'delivered')$$, 'the same row several times in one batch');
SELECT is((SELECT count(*) FROM user_events WHERE message_key = 'alice|far|1000|9|2' AND kind = 2)::int, 1, 'one state event');

-- Status for peers
SELECT results_eq($$SELECT ord, state COLLATE "default", revision_time_ms FROM get_delivery_status('{alice,alice,alice}','{alice|far|1000|99|2,alice|far|1000|9|2,alice|far|1000|3|2}') ORDER BY ord$$,
    $$VALUES (2, 'delivered', 0::bigint), (3, 'accepted', 0)$$, 'get_delivery_status leaves out what is not known');
SELECT is((SELECT value FROM show_delivery('alice', 'alice|far|1000|10|2') WHERE name = 'delivered_via'), 'x', 'show_delivery gives names and texts');
SELECT is((SELECT route_hint FROM dm_delivery_state WHERE outgoing_key = 'alice|far|1000|3|2'), 'x', 'the hint is set by each finish');
SELECT is_empty('SELECT broken()', 'nothing is broken');
SELECT * FROM finish();
