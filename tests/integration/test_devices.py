"""A user's devices: listing and closing them, and a session that moves between connections.

`quiet` polls so rarely that only notifications can do what is waited for, `deaf` gets no notification
of what the tests do in its database, so that only its poll can.
"""

import asyncio
import json

import lab
import pytest
import example_client
from nacl.signing import SigningKey
from example_client import ConnectionClosed, ShineError
from support.waiting import eventually

TAKEN_OVER, CLOSED, LOG_IN_LOST = 4001, 4002, 1012


def serving(world, login, **settings):
    """A server whose two workers have reached the database."""
    server = world.server(login, **settings)
    count = "SELECT count(*) FROM processes"
    lab.wait_until(lambda: server.value(count) >= 2, 60, f"workers of {login}")
    return server


@pytest.fixture(scope="module")
def quiet(world):
    server = serving(world, "quiet", events__pollMs=600_000)
    yield server
    assert server.stop()


@pytest.fixture(scope="module")
def deaf(world):
    server = serving(world, "deaf", events__pollMs=200)
    yield server
    assert server.stop()


async def refused(client, op, payload=None):
    with pytest.raises(ShineError) as e:
        await client.call(op, payload)
    return e.value.status, e.value.error


async def alive(client):
    return await client.call("Ping", {"ts": 7}) == {"ts": 7}


def place(server, client):
    """The worker that holds this connection."""
    query = "SELECT connected_to FROM active_sessions WHERE session_id = %s"
    return server.value(query, [client.session_id])


def exists(server, session_id):
    query = "SELECT EXISTS (SELECT FROM active_sessions WHERE session_id = %s)"
    return server.value(query, [session_id])


async def neighbour(net, user, server, client, same):
    """A connection with a session of its own, on the same worker as `client` or on another. The
    kernel chooses the worker, so we try until it has chosen as we like."""
    for _ in range(60):
        other = await net.session(user, server)
        if (place(server, other) == place(server, client)) == same:
            return other
        await other.call("CloseActiveSession")
        await other.wait_closed()
    raise AssertionError("60 connections, none where it was wanted")


SAME = pytest.mark.parametrize("same", [True, False], ids=["same worker", "other worker"])


# ---- the list ----


async def test_own_sessions_are_listed(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    phone, laptop = await net.session(alice), await net.session(alice, event_mode="pts")
    await net.session(bob)
    await laptop.close()
    await eventually(lambda: not place(alpha, laptop), "the laptop to be away")

    answer = await phone.call("ListSessions")
    assert answer["hasMore"] is False
    found = {s["sessionId"]: s for s in answer["sessions"]}
    assert list(found) == sorted([phone.session_id, laptop.session_id])
    for session in found.values():
        made, seen = session.pop("createdAtMs"), session.pop("seenAtMs")
        assert alpha.now_ms() - 60_000 < made <= seen <= alpha.now_ms()
    common = {"clientInfo": "example_client.py", "ackedPts": 0}
    assert found[phone.session_id] == {
        **common, "sessionId": phone.session_id, "eventMode": "live", "connected": True,
        "current": True,
    }  # fmt: skip
    assert found[laptop.session_id] == {
        **common, "sessionId": laptop.session_id, "eventMode": "pts", "connected": False,
        "current": False,
    }  # fmt: skip


@pytest.mark.parametrize("info", ["„Käthe“", {"os": {"name": "x", "v": [1, None, True]}}, {}, ""])
async def test_client_info_comes_back_as_it_was_sent(alpha, net, info):
    alice = await net.user("alice", alpha)
    c = await net.connect(alpha)
    nonce = (await c.call("AuthChallenge", {"login": alice.login}))["authNonce"]
    payload = example_client.create_session_payload(
        alice.login, alice.key, SigningKey.generate(), nonce
    )
    await c.call("CreateAuthSession", {**payload, "clientInfo": info})
    assert (await c.call("ListSessions"))["sessions"][0]["clientInfo"] == info


async def test_a_long_list_comes_in_pages(world, net):
    limits = {"limits__maxAnswerBytes": 65_536, "limits__sessionsPerUser": 100}
    server = serving(world, "pages", **limits)
    alice = await net.user("alice", server)
    c = await net.session(alice)
    server.rows(
        "INSERT INTO active_sessions (session_id, login, session_key, storage_pwd, client_info,"
        " event_mode, created_at_ms, seen_at_ms) SELECT lpad(i::text, 43, '0'), %s, '\\x00', '',"
        " %s, 'live', 1, 2 FROM generate_series(1, 99) i",
        [alice.login, json.dumps("x" * 4000)],
    )
    seen, pages, more = [], 0, True
    while more:
        page = await c.call("ListSessions", {"afterSessionId": seen[-1]} if seen else {})
        text = json.dumps(page, separators=(",", ":"))
        assert page["sessions"] and len(text) < 65_536 - 200  # the envelope
        assert len(text) > 55_000 or not page["hasMore"]
        seen += [s["sessionId"] for s in page["sessions"]]
        pages, more = pages + 1, page["hasMore"]
    assert pages > 5 and len(seen) == 100 and seen == sorted(set(seen))
    assert (await c.call("ListSessions", {"afterSessionId": seen[-1]}))["sessions"] == []
    await net.close()
    assert server.stop()


async def test_both_need_a_session_and_well_formed_fields(alpha, net):
    c = await net.connect(alpha)
    for op in ("ListSessions", "CloseActiveSession"):
        assert await refused(c, op) == (401, "NOT_AUTHENTICATED")
    mine = await net.session(await net.user("alice", alpha))
    assert await refused(mine, "ListSessions", {"afterSessionId": 1}) == (400, "BAD_FIELDS")
    assert await refused(mine, "CloseActiveSession", {"sessionId": 1}) == (400, "BAD_FIELDS")
    assert await alive(mine)


# ---- closing ----


@pytest.mark.parametrize("named", [False, True])
async def test_a_device_closes_its_own_session(alpha, net, named):
    alice = await net.user("alice", alpha)
    c = await net.session(alice)
    other = await net.session(alice)
    ask = {"sessionId": c.session_id} if named else {}
    assert await c.call("CloseActiveSession", ask) == {}  # answered first
    assert (await c.wait_closed()).code == CLOSED
    assert not exists(alpha, c.session_id)
    assert [s["sessionId"] for s in (await other.call("ListSessions"))["sessions"]] == [
        other.session_id
    ]
    gone = {"sessionId": c.session_id}
    assert await refused(other, "SessionChallenge", gone) == (422, "SESSION_NOT_FOUND")
    assert await refused(other, "CloseActiveSession", gone) == (422, "SESSION_NOT_FOUND")


@SAME
async def test_a_device_closes_another(quiet, net, same):
    alice = await net.user("alice", quiet)
    mine = await net.session(alice)
    lost = await neighbour(net, alice, quiet, mine, same)
    assert await mine.call("CloseActiveSession", {"sessionId": lost.session_id}) == {}
    assert (await lost.wait_closed()).code == CLOSED
    assert not exists(quiet, lost.session_id)
    assert await alive(mine)
    # What is sent now reaches the one that stayed.
    answer = await mine.send_text(alice.login, "only me")
    assert answer["deliveredWsSessions"] == 0
    assert (await mine.wait_event("IncomingDirectMessage"))["messageKey"] == answer["incomingKey"]
    assert not lost.events


async def test_a_device_that_is_away_is_closed_too(alpha, net):
    alice = await net.user("alice", alpha)
    mine, away = await net.session(alice), await net.session(alice)
    await away.close()
    await mine.call("CloseActiveSession", {"sessionId": away.session_id})
    assert not exists(alpha, away.session_id)


async def test_only_own_sessions_can_be_closed(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    mine, his = await net.session(alice), await net.session(bob)
    foreign = (422, "SESSION_OF_ANOTHER_USER")
    unknown = (422, "SESSION_NOT_FOUND")
    assert await refused(mine, "CloseActiveSession", {"sessionId": his.session_id}) == foreign
    for session_id in ("x" * 43, "x" * 42, "", "'; --"):
        assert await refused(mine, "CloseActiveSession", {"sessionId": session_id}) == unknown
    assert await alive(mine) and await alive(his)
    assert exists(alpha, his.session_id) and exists(alpha, mine.session_id)


async def test_a_session_closed_during_its_log_in(alpha, net):
    alice = await net.user("alice", alpha)
    mine, lost = await net.session(alice), await net.session(alice)
    again = await net.connect(alpha)
    asked = await again.call("SessionChallenge", {"sessionId": lost.session_id})
    await mine.call("CloseActiveSession", {"sessionId": lost.session_id})
    payload = example_client.session_login_payload(
        lost.session_id, lost.session_key, asked["nonce"]
    )
    assert await refused(again, "SessionLogin", payload) == (422, "SESSION_NOT_FOUND")
    assert await refused(again, "ListSessions") == (401, "NOT_AUTHENTICATED")


@SAME
async def test_of_two_that_close_each_other_one_stays(quiet, net, same):
    alice = await net.user("alice", quiet)
    one = await net.session(alice)
    for _ in range(5):
        two = await neighbour(net, alice, quiet, one, same)
        answers = await asyncio.gather(
            one.call("CloseActiveSession", {"sessionId": two.session_id}),
            two.call("CloseActiveSession", {"sessionId": one.session_id}),
            return_exceptions=True,
        )
        assert sorted(a == {} for a in answers) == [False, True]
        winner, loser = (one, two) if answers[0] == {} else (two, one)
        (problem,) = [a for a in answers if a != {}]
        if isinstance(problem, ShineError):
            assert (problem.status, problem.error) == (401, "NOT_AUTHENTICATED")
        assert (await loser.wait_closed()).code == CLOSED
        assert await alive(winner) and exists(quiet, winner.session_id)
        one = winner


# ---- what notifications do not tell ----


@pytest.mark.parametrize(
    "change,code",
    [
        ("DELETE FROM active_sessions WHERE session_id = %s", CLOSED),
        (
            "UPDATE active_sessions SET generation = generation + 1 WHERE session_id = %s",
            TAKEN_OVER,
        ),
        (
            "UPDATE active_sessions SET generation = generation - 1 WHERE session_id = %s",
            LOG_IN_LOST,
        ),
    ],
    ids=["closed", "taken over", "log-in lost by the database"],
)
async def test_the_poll_finds_what_no_notification_told(deaf, net, change, code):
    alice = await net.user("alice", deaf)
    bystander = await net.session(alice)
    c = await net.session(alice)
    await c.session_login(c.session_id, c.session_key, alice.key)  # generation 2
    deaf.rows(change, [c.session_id])
    assert (await c.wait_closed()).code == code
    assert await alive(bystander)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM active_sessions WHERE session_id = %s",
        "UPDATE active_sessions SET generation = generation + 1 WHERE session_id = %s",
    ],
    ids=["closed", "taken over"],
)
async def test_who_lost_the_session_manages_no_devices(quiet, net, change):
    alice = await net.user("alice", quiet)
    thief, mine = await net.session(alice), await net.session(alice)
    quiet.rows(change, [thief.session_id])
    assert await refused(thief, "ListSessions") == (401, "NOT_AUTHENTICATED")
    for ask in ({"sessionId": mine.session_id}, {}):
        assert await refused(thief, "CloseActiveSession", ask) == (401, "NOT_AUTHENTICATED")
    assert exists(quiet, mine.session_id) and await alive(mine)


# ---- take-over ----


@SAME
async def test_a_log_in_closes_the_older_connection(quiet, net, same):
    alice = await net.user("alice", quiet)
    first = await net.session(alice)
    second = await neighbour(net, alice, quiet, first, same)
    answer = await second.session_login(first.session_id, first.session_key, alice.key)
    assert answer["login"] == alice.login
    assert (await first.wait_closed()).code == TAKEN_OVER
    (mine,) = [s for s in (await second.call("ListSessions"))["sessions"] if s["current"]]
    assert mine["sessionId"] == first.session_id and mine["connected"] is True
    sent = await second.send_text(alice.login, "here now")
    assert (await second.wait_event("IncomingDirectMessage"))["messageKey"] == sent["incomingKey"]
    assert not first.events


OVERTAKEN = """
    ALTER FUNCTION login_session(text, text, text, text) RENAME TO login_session_;
    CREATE FUNCTION login_session(text, text, text, text) RETURNS TABLE (login text,
        session_key bytea, storage_pwd text, epoch bigint, last_pts bigint, acked_pts bigint,
        generation bigint) LANGUAGE sql AS $$
        SELECT login, session_key, storage_pwd, epoch, last_pts, acked_pts, generation - 1
        FROM login_session_($1, $2, $3, $4) $$"""
PUT_RIGHT = """
    DROP FUNCTION login_session(text, text, text, text);
    ALTER FUNCTION login_session_(text, text, text, text) RENAME TO login_session"""


async def test_a_log_in_that_was_overtaken_before_its_answer(quiet, net):
    """Another worker's log-in came between, and its notification before we held the session."""
    alice = await net.user("alice", quiet)
    first = await net.session(alice)
    second = await net.connect(quiet)
    quiet.rows(OVERTAKEN)
    try:
        await second.session_login(first.session_id, first.session_key)
        assert (await second.wait_closed()).code == TAKEN_OVER
    finally:
        quiet.rows(PUT_RIGHT)


async def test_a_device_that_reconnects_all_the_time_has_one_connection(quiet, net):
    """A new connection every 50 ms, none waits for the one before."""
    alice = await net.user("alice", quiet)
    first = await net.session(alice)
    made = [first]

    async def log_in():
        c = await net.connect(quiet)
        made.append(c)
        try:
            await c.session_login(first.session_id, first.session_key, alice.key)
        except ConnectionClosed as e:  # taken over before the answer
            assert e.code == TAKEN_OVER

    tasks = []
    for _ in range(60):
        tasks.append(asyncio.ensure_future(log_in()))
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)
    await eventually(lambda: sum(c.closed is None for c in made) == 1, "one to remain")
    (last,) = [c for c in made if c.closed is None]
    assert {c.closed.code for c in made if c is not last} == {TAKEN_OVER}
    (listed,) = (await last.call("ListSessions"))["sessions"]  # it is the one that counts
    assert listed["connected"] and listed["current"]
    sent = await last.send_text(alice.login, "settled")
    assert (await last.wait_event("IncomingDirectMessage"))["messageKey"] == sent["incomingKey"]
