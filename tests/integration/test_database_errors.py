"""Errors of a database that is there, but cannot just now: the client is asked to come again."""

import pytest
from example_client import ShineError
from support.refusals import content

FAILING = """
    CREATE OR REPLACE FUNCTION public.now_ms() RETURNS bigint LANGUAGE plpgsql STABLE AS
    $f$ BEGIN RAISE EXCEPTION 'as the test wants' USING ERRCODE = '{}'; END $f$"""
WORKING = "SELECT pg_get_functiondef('public.now_ms()'::regprocedure) AS def"


PASSING = ["53100", "53200", "53300", "57014", "55P03", "40001", "40P01"]


@pytest.mark.parametrize("sqlstate", PASSING)
async def test_errors_that_pass_are_503(alpha, net, sqlstate):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    a = await net.session(alice)
    before, working = content(alpha), alpha.value(WORKING)
    pair = alice.pair(bob)
    alpha.rows(FAILING.format(sqlstate))
    try:
        with pytest.raises(ShineError) as e:
            await a.send_pair(*pair)
    finally:
        alpha.rows(working)
    assert (e.value.status, e.value.error) == (503, "DB_UNAVAILABLE")
    assert 0 < e.value.payload["retryAfterMs"] <= 60_000
    assert content(alpha) == before
    assert (await a.send_pair(*pair))["deliveryState"] == "delivered"


async def test_errors_that_stay_are_500(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    a = await net.session(alice)
    working = alpha.value(WORKING)
    alpha.expect("db_error")
    alpha.rows(FAILING.format("XX000"))
    try:
        with pytest.raises(ShineError) as e:
            await a.send_text(bob.login, "x")
    finally:
        alpha.rows(working)
    assert (e.value.status, e.value.error) == (500, "INTERNAL_ERROR")
    assert (await a.send_text(bob.login, "x"))["deliveryState"] == "delivered"
