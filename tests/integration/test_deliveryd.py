"""deliveryd: which attempt is made when, who is asked and called, and what is recorded. An hour passes
in seconds because the database's clock is moved."""

import asyncio
import time

import pytest
from support.fake_server import answers, in_turn, never, waits
from support.retries import MINUTE, REFUSES, SLOTS, TICK_MS, Scene, attempted, became, due_now, later
from support.waiting import eventually

DELIVERED = {"known": True, "delivered": True}


@pytest.fixture(scope="module")
def home(world):
    """A server whose deliveryd looks often, and waits for no answer longer than two seconds."""
    server = world.server(
        "home",
        delivery__firstReplyBudgetMs=200,
        delivery__tickMs=TICK_MS,
        server__pool__requestTimeoutSeconds=2,
        server__pool__connectTimeoutSeconds=3,
    )
    server.start_deliveryd()
    return server


@pytest.fixture
def scene(home, net):
    yield Scene(home, net)
    later(home, 0)


async def looked(scene):
    """Wait until deliveryd has claimed what is due now: a message made for that comes through."""
    async with scene.server("canary") as canary:
        other = Scene(scene.home, scene.net)
        await other.people(canary)
        key = await other.send()
        scene.does["canary"] = answers()
        due_now(scene.home, key)
        await became(scene.home, key, "delivered")


# ---- the schedule ----


async def test_the_hour(home, scene, net):
    """Each attempt in its slot and not before, asking first as the table says, calling the routes
    that are current at that moment; and the end."""
    async with scene.server("gamma") as gamma, scene.server("delta") as delta, scene.server(
        "second", answers(payload={"known": False, "delivered": False})
    ) as second:
        await scene.people(gamma, second=second)
        at_alice = await net.session(scene.alice)
        key = await scene.send()
        called = {2: (gamma,), 3: (delta,), 4: (gamma, delta), 5: (delta, gamma)}
        for number, routes in called.items():
            scene.set_routes(*routes)
            later(home, SLOTS[number] - 20000)
            await looked(scene)
            before = len(scene.said)
            assert home.delivery(key)["attempt_no"] == number
            later(home, SLOTS[number])
            row = await attempted(home, key, number + 1)
            new = [x for x in scene.said[before:] if x[1] != "ReceiveOutcomingMessage"]
            ask = [("second", "GetDmDeliveryStatus")] if number >= 3 else []
            calls = [(r.login, "ReceiveIncomingMessage") for r in routes]
            assert new[: len(ask)] == ask and sorted(new[len(ask) :]) == sorted(calls), number
            if number < 5:
                assert row["due_after_ms"] == SLOTS[number + 1], number
        assert row["state"] == "failed" and row["next_attempt_at_ms"] is None
        assert row["attempt_no"] == 5 and "500" in row["last_error"]
        event = await at_alice.wait_event("DmDeliveryStateChanged")
        assert event["deliveryState"] == "failed" and event["outgoingKey"] == key

        calls = scene.calls("gamma", "delta")
        later(home, 48 * 60 * MINUTE)
        await looked(scene)
        assert scene.calls("gamma", "delta") == calls, "never again"


async def test_no_routes_is_a_failed_attempt(home, scene):
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        key = await scene.send()
        home.rows("DELETE FROM user_access_servers_current WHERE login = %s", [scene.bob.login])
        later(home, SLOTS[2])
        row = await attempted(home, key, 3)
        assert row["last_error"] == "no_route" and row["due_after_ms"] == SLOTS[3]
        assert scene.calls("gamma") == [1]


@pytest.mark.parametrize("minutes, number", [(2, 2), (26, 4), (70, 5), (60 * 24 * 7, 5)])
async def test_late_start(world, net, minutes, number):
    """All processes were down: the slot due now is made, those that were missed are not."""
    late = world.server("late", delivery__firstReplyBudgetMs=200, delivery__tickMs=TICK_MS)
    scene = Scene(late, net)
    async with scene.server("gamma") as gamma, scene.server("second") as second:
        await scene.people(gamma, second=second)
        key = await scene.send()
        later(late, minutes * MINUTE)
        late.start_deliveryd()
        row = await attempted(late, key, number + 1)
        assert scene.calls("gamma") == [2] and scene.questions() == (number >= 3)
        if number == 5:
            assert row["state"] == "failed"
        else:
            assert row["due_after_ms"] == SLOTS[number + 1]
    assert late.stop()


async def test_a_schedule_of_ones_own(world, net):
    own = world.server(
        "own",
        delivery__firstReplyBudgetMs=200,
        delivery__tickMs=TICK_MS,
        delivery__scheduleMs="0, 30000, 40000",
        delivery__askSecondFrom=2,
    )
    scene = Scene(own, net)
    async with scene.server("gamma") as gamma, scene.server("second") as second:
        await scene.people(gamma, second=second)
        own.start_deliveryd()
        key = await scene.send()
        later(own, 30_000)
        row = await attempted(own, key, 3)
        assert row["due_after_ms"] == 40_000 and scene.questions() == 1
        later(own, 40_000)
        assert (await became(own, key, "failed"))["attempt_no"] == 3
        assert scene.calls("gamma") == [3] and scene.questions() == 2
    assert own.stop()


# ---- asking first ----


async def test_the_second_server_has_delivered_it(home, scene, net):
    async with scene.server("gamma") as gamma, scene.server(
        "second", answers(payload=DELIVERED)
    ) as second:
        await scene.people(gamma, second=second)
        at_alice = await net.session(scene.alice)
        key = await scene.send()
        later(home, SLOTS[3])
        row = await became(home, key, "delivered")
        assert row["delivered_via"] == "second" and row["attempt_no"] == 3
        assert scene.calls("gamma") == [1], "contact nobody else"
        (asked,) = [r for r in second.requests if r["op"] == "GetDmDeliveryStatus"]
        assert asked["payload"] == {"messageKey": key}
        event = await at_alice.wait_event("DmDeliveryStateChanged")
        assert event["deliveryState"] == "delivered"


NO_ANSWERS = {
    "not known": answers(payload={"known": False, "delivered": False}),
    "not delivered": answers(payload={"known": True, "delivered": False}),
    "another revision": answers(payload={**DELIVERED, "revisionTimeMs": 5, "reencryptedAtMs": 0}),
    "re-encrypted": answers(payload={**DELIVERED, "reencryptedAtMs": 5}),
    "revision of a wrong type": answers(payload={**DELIVERED, "revisionTimeMs": "0"}),
    "delivered of a wrong type": answers(payload={"known": True, "delivered": 1}),
    "an old server": answers(400, "UNKNOWN_OP"),
    "an error that says delivered": answers(500, "INTERNAL_ERROR", payload=DELIVERED),
    "silence": never,
}


@pytest.mark.parametrize("kind", NO_ANSWERS)
async def test_answers_that_do_not_stand_in_the_way(home, scene, kind):
    async with scene.server("gamma") as gamma, scene.server("second", NO_ANSWERS[kind]) as second:
        await scene.people(gamma, second=second)
        key = await scene.send()
        scene.does["gamma"] = answers()
        later(home, SLOTS[3])
        row = await became(home, key, "delivered")
        assert row["delivered_via"] == "gamma"
        # A server that has swallowed the push may be busy with it until the question is too old.
        assert scene.questions() == 1 or kind == "silence"


@pytest.mark.parametrize("named", [True, False])
async def test_an_edit_is_asked_about_by_its_revision(home, scene, named):
    payload = {**DELIVERED, **({"revisionTimeMs": 77, "reencryptedAtMs": 0} if named else {})}
    async with scene.server("gamma") as gamma, scene.server(
        "second", answers(payload=payload)
    ) as second:
        await scene.people(gamma, second=second)
        key = await scene.send(revision=77)
        scene.does["gamma"] = answers()
        later(home, SLOTS[3])
        row = await became(home, key, "delivered")
        assert row["delivered_via"] == ("second" if named else "gamma")
        assert scene.calls("gamma") == [1 if named else 2]


# ---- edits, answers of all kinds ----


async def test_an_edit_during_an_attempt(home, scene, net):
    """The attempt at the older revision succeeds; the newer one is delivered all the same."""
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        client = await net.connect(home)
        stamp = {"time_ms": 1_700_000_000_000, "nonce": 7}
        first = scene.alice.pair(scene.bob, "first", **stamp)
        sent = await client.send_pair(*first)
        key = sent["outgoingKey"]
        await attempted(home, key, 2)
        scene.does["gamma"] = in_turn(waits, answers())
        due_now(home, key)
        await gamma.asked("ReceiveIncomingMessage", 2)

        scene.does["gamma"] = REFUSES
        await client.send_pair(*scene.alice.pair(scene.bob, "second", revision=5, **stamp))
        await attempted(home, key, 2)
        scene.does["gamma"] = answers()
        gamma.gate.set()
        await gamma.asked("ReceiveIncomingMessage", 3)
        due_now(home, key)
        row = await became(home, key, "delivered")
        assert row["revision_time_ms"] == 5 and scene.calls("gamma") == [4]


async def test_busy_servers_use_no_slot_until_the_row_is_old(home, scene):
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        key = await scene.send()
        scene.does["gamma"] = answers(503, "OVERLOADED", payload={"retryAfterMs": 300})
        later(home, SLOTS[2])
        await gamma.asked("ReceiveIncomingMessage", 4)
        row = await attempted(home, key, 2)
        assert row["attempt_no"] == 2 and row["claims"] == 0 and "503" in row["last_error"]
        later(home, 74 * MINUTE)
        count = scene.calls("gamma")[0]
        await gamma.asked("ReceiveIncomingMessage", count + 3)
        assert home.delivery(key)["state"] == "accepted"
        later(home, 76 * MINUTE)
        await became(home, key, "failed")


async def test_one_of_two_servers_is_enough(home, scene):
    async with scene.server("gamma") as gamma, scene.server("delta") as delta:
        await scene.people(gamma, delta)
        key = await scene.send()
        scene.does["gamma"], scene.does["delta"] = never, answers()
        due_now(home, key)
        started = time.monotonic()
        row = await became(home, key, "delivered")
        assert row["delivered_via"] == "delta" and time.monotonic() - started < 1.5


# ---- hints ----


async def test_the_event_comes_with_the_hint(world, net):
    quick = world.server(
        "quick",
        delivery__firstReplyBudgetMs=200,
        delivery__tickMs=TICK_MS,
        events__pollMs=600_000,
    )
    quick.start_deliveryd()
    scene = Scene(quick, net)
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        sessions = await net.spread_sessions(scene.alice, quick)
        key = await scene.send()
        scene.does["gamma"] = answers()
        due_now(quick, key)
        await became(quick, key, "delivered")
        started = time.monotonic()
        events = await asyncio.gather(*(s.wait_event("DmDeliveryStateChanged") for s in sessions))
        assert [e["deliveryState"] for e in events] == ["delivered", "delivered"]
        assert time.monotonic() - started < 2
    assert quick.stop()


async def test_wake_ups_and_the_lost_connection(world, net):
    """With a tick of ten minutes only notifications, and the claim after each new LISTEN, can have
    made these attempts."""
    woken = world.server("woken", delivery__firstReplyBudgetMs=200, delivery__tickMs=600_000)
    scene = Scene(woken, net)
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        keys = [await scene.send() for _ in range(4)]
        woken.start_deliveryd()
        scene.does["gamma"] = answers()
        listening = (
            "datname = %s AND pid <> pg_backend_pid() AND query LIKE 'LISTEN shine_due;%%'"
        )
        await eventually(
            lambda: woken.rows(
                f"SELECT pid FROM pg_stat_activity WHERE {listening}", [woken.database]
            ),
            "LISTEN",
        )
        for key in keys[:3]:  # the first one might be found by the claim at the start
            due_now(woken, key)
            woken.rows("NOTIFY shine_due")
            await became(woken, key, "delivered")
        due_now(woken, keys[3])
        assert woken.rows(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {listening}",
            [woken.database],
        )
        await became(woken, keys[3], "delivered")
    assert woken.stop()
