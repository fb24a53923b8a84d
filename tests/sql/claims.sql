-- Claims: what is taken, in which order, and what it costs whatever else is stored.
\ir support.psql
SELECT plan(29);
SELECT make_users();

CREATE FUNCTION buffers(q text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE j json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT json) ' || q INTO j;
    RETURN (j->0->'Plan'->>'Shared Hit Blocks')::bigint + (j->0->'Plan'->>'Shared Read Blocks')::bigint;
END $$;
-- Rows n..m of alice to `far`, due `ago` ms ago, known under the hint.
CREATE FUNCTION rows_due(n integer, m integer, ago bigint, hint text, attempt integer DEFAULT 2) RETURNS void LANGUAGE sql AS $$
    INSERT INTO dm_delivery_state (from_login, outgoing_key, base_key, incoming_key, to_login, revision_time_ms, reencrypted_at_ms,
        state, attempt_no, accepted_at_ms, next_attempt_at_ms, route_hint, updated_at_ms)
    SELECT 'alice', format('alice|far|%s|9|2', i), format('alice|far|%s|9', i), format('alice|far|%s|9|1', i), 'far', 0, 0,
           'accepted', attempt, now_ms() - 30000 - ago, now_ms() - ago + i, hint, 0 FROM generate_series(n, m) i
$$;
CREATE FUNCTION claimed(max integer, skip text[] DEFAULT '{}', who text DEFAULT 'p1') RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(split_part(outgoing_key, '|', 3), ',' ORDER BY o) FILTER (WHERE from_login IS NOT NULL), '')
    FROM claim_due('home', who, max, 1000000, 45000, skip) WITH ORDINALITY AS x(from_login, to_login, outgoing_key, incoming_key, r1, r2, v, attempt, ago, claims, t, blob, a1, b1, a2, b2, here, s, su, more, next, o)
$$;

SELECT rows_due(1, 3, 1000, 'x'), rows_due(11, 13, 2000, 'y'), rows_due(21, 23, -5000, 'x');
SELECT is(claimed(2), '11,12', 'in the order in which they became due');
SELECT is(claimed(10, '{y}'), '1,2,3', 'peers that are left out stay');
SELECT is(claimed(10), '13', 'the rest, and nothing twice');
SELECT is(claimed(10), '', 'nothing is left');
SELECT is((SELECT count(*) FROM dm_delivery_state WHERE lease_owner = 'p1' AND lease_until_ms > now_ms() + 44000 AND row_version = 2), 6::bigint, 'leased, with a new version');
SELECT cmp_ok((SELECT next_due FROM claim_due('home', 'p1', 10, 1000, 1000, '{}') ORDER BY from_login LIMIT 1), '<=', 5100::bigint, 'when the next is due');
SELECT is((SELECT next_due FROM claim_due('home', 'p1', 10, 1000, 1000, '{x,y}')), -1::bigint, 'nothing of peers that are left out');
SELECT ok((SELECT bool_and(more) FROM (SELECT rows_due(31, 34, 100, 'x')) r, claim_due('home', 'p1', 4, 1000, 1000, '{}') WHERE from_login IS NULL), 'a full batch says so');

-- slots
UPDATE dm_delivery_state SET state = 'delivered', next_attempt_at_ms = NULL, lease_owner = NULL, lease_until_ms = NULL;
SELECT rows_due(41, 41, 1600000, 'x'), rows_due(42, 42, 7200000, 'x'), rows_due(43, 43, 0, 'x');
UPDATE dm_delivery_state SET next_attempt_at_ms = now_ms() - 1 WHERE outgoing_key LIKE '%|43|9|2';
SELECT is((SELECT string_agg(split_part(outgoing_key, '|', 3) || ':' || attempt, ' ' ORDER BY outgoing_key) FROM claim_due('home', 'p1', 10, 1000000, 1000, '{}')
           WHERE from_login IS NOT NULL), '41:4 42:5 43:2', 'the latest slot that has passed');
SELECT is((SELECT attempt FROM (SELECT rows_due(44, 44, 1600000, 'x')) r, claim_due('home', 'p1', 10, 1000000, 1000, '{}', '{0,5,10}') WHERE from_login IS NOT NULL), 3, 'of the schedule that is given');

-- leases that ran out
UPDATE dm_delivery_state SET lease_until_ms = now_ms() - 1, next_attempt_at_ms = now_ms() - 1 WHERE outgoing_key LIKE '%|43|9|2';
SELECT is(claimed(10, who => 'p2'), '43', 'a lease that ran out is claimable');
SELECT is((SELECT claims FROM dm_delivery_state WHERE outgoing_key LIKE '%|43|9|2'), 1::smallint, 'and is counted');
UPDATE dm_delivery_state SET claims = 10, lease_until_ms = now_ms() - 1 WHERE outgoing_key LIKE '%|43|9|2';
SELECT is(claimed(10), '', 'after ten in a row it is set aside');
UPDATE dm_delivery_state SET lease_until_ms = now_ms() - 600001 WHERE outgoing_key LIKE '%|43|9|2';
SELECT is((SELECT outgoing_key FROM v_delivery_stuck), 'alice|far|43|9|2', 'people see it');
SELECT ok(release_delivery('alice', 'alice|far|1|1|2') IS NULL AND NOT release_delivery('alice', 'alice|far|42|9|2'), 'nothing to release');
SELECT ok(release_delivery('alice', 'alice|far|43|9|2'), 'released');
SELECT ok(NOT release_delivery('alice', 'alice|far|43|9|2'), 'once');
SELECT is(claimed(10), '43', 'and claimed at once');
UPDATE dm_delivery_state SET claims = 10, lease_until_ms = now_ms() - 600001 WHERE outgoing_key LIKE '%|43|9|2';
SELECT rows_due(51, 51, 10000, 'x');
SELECT is(claimed(10), '51', 'others go first');
SELECT is(claimed(10), '43', 'then it comes alone, once in ten minutes');
SELECT release_claims('p1', 60000);
SELECT is((SELECT count(*) FROM dm_delivery_state WHERE lease_owner = 'p1' AND lease_until_ms > now_ms()), 0::bigint, 'given back');
SELECT is((SELECT claims FROM dm_delivery_state WHERE outgoing_key LIKE '%|43|9|2'), 0::smallint, 'which ends the count');

-- cost
UPDATE dm_delivery_state SET state = 'delivered', next_attempt_at_ms = NULL, lease_owner = NULL, lease_until_ms = NULL;
SELECT rows_due(100001, 200000, 1000000, 'dead');
UPDATE dm_delivery_state SET state = 'failed', next_attempt_at_ms = NULL WHERE outgoing_key > 'alice|far|15';
UPDATE dm_delivery_state SET lease_owner = 'p9', lease_until_ms = now_ms() + 40000 WHERE state = 'accepted' AND outgoing_key > 'alice|far|13';
UPDATE dm_delivery_state SET next_attempt_at_ms = now_ms() + 100000 WHERE state = 'accepted' AND outgoing_key > 'alice|far|12' AND lease_owner IS NULL;
SELECT rows_due(61, 70, 100, 'live');
VACUUM ANALYZE dm_delivery_state;
SELECT claimed(1, '{dead}');
SELECT cmp_ok(buffers($$SELECT claimed(1, '{dead}')$$), '<', 200::bigint, 'one row past a dead peer with 20,000 due rows');
SELECT cmp_ok(buffers($$SELECT claimed(1)$$), '<', 200::bigint, 'one row among failed, leased and future ones');
SELECT is(claimed(100, '{dead}'), '63,64,65,66,67,68,69,70', 'and they are the right ones');

-- Past a peer at its bound, with others that have more due than is wanted: parts for all, and no row is touched that is not taken.
UPDATE dm_delivery_state SET state = 'delivered', next_attempt_at_ms = NULL, lease_owner = NULL, lease_until_ms = NULL WHERE state = 'accepted';
SELECT rows_due(1000 * p + 300001, 1000 * p + 300100, 309000 + 999 * p, 'q' || p) FROM generate_series(0, 9) p;
SELECT rows_due(320001, 320002, 329500, 'few');
SELECT results_eq($$SELECT left(split_part(outgoing_key, '|', 3), 3), count(*)::int FROM claim_due('home', 'p7', 20, 1000000, 45000, '{q0}') WHERE from_login IS NOT NULL GROUP BY 1 ORDER BY 1$$,
    $$VALUES ('301', 2), ('302', 2), ('303', 2), ('304', 2), ('305', 2), ('306', 2), ('307', 2), ('308', 2), ('309', 2), ('320', 2)$$, 'a part of the batch for each peer');
SELECT is((SELECT count(*) FROM dm_delivery_state WHERE xmax <> 0 AND state = 'accepted' AND lease_owner IS NULL), 0::bigint, 'what is not taken is not locked');
SELECT ok((SELECT more FROM claim_due('home', 'p7', 20, 1000000, 45000, '{q0}') WHERE from_login IS NULL), 'there is more');
SELECT is((SELECT string_agg(split_part(outgoing_key, '|', 3), ',' ORDER BY o) FROM claim_due('home', 'p7', 3, 1000000, 45000, '{q0,q2,q3,q4,q5,q6,q7,q8}') WITH ORDINALITY AS x(from_login, to_login, outgoing_key, incoming_key, r1, r2, v, attempt, ago, claims, t, blob, a1, b1, a2, b2, here, s, su, more, next, o)
           WHERE from_login IS NOT NULL), '301006,301007,309005', 'by the time they became due, the odd one to who waits longest');
SELECT * FROM finish();
