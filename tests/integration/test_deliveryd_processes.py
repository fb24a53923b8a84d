"""Several deliveryd on one database, dead ones, frozen ones, and servers that keep them waiting. With
SHINE_CHAOS the numbers are those of `make chaos`."""

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter

import lab
import pytest
from support.fake_server import FakeServer, answers, in_turn, never, waits
from support.retries import (
    REFUSES, SLOTS, TICK_MS, Scene, attempted, became, due_now, later, make_rows, states,
)  # fmt: skip
from support.waiting import eventually

CHAOS = bool(os.environ.get("SHINE_CHAOS"))
LEASE_MS = 45_000


@pytest.fixture
def home(world):
    """A server without deliveryd; what the test started is stopped."""
    server = world.server("home", delivery__firstReplyBudgetMs=200, delivery__tickMs=TICK_MS)
    yield server
    assert server.stop()


@pytest.fixture
def scene(home, net):
    return Scene(home, net)


class Recorder(FakeServer):
    """Counts what it is brought, by blob."""

    def __init__(self, login, certificate, react=answers()):
        self.brought = Counter()

        async def count(server, ws, request):
            self.brought[request["payload"].get("incomingBlobB64")] += 1
            await react(server, ws, request)

        super().__init__(login, certificate, count)


# ---- many processes ----


async def test_many_processes_make_no_attempt_twice(home, net):
    count, processes = (20_000, 8) if CHAOS else (1_000, 4)
    async with Recorder("gamma", home.certificate) as gamma, Recorder(
        "delta", home.certificate
    ) as delta:
        alice = await net.user("alice", home)
        people = [
            await net.user("bob", known_to=(home,), urls=[gamma.route]),
            await net.user("carol", known_to=(home,), urls=[delta.route]),
        ]
        make_rows(home, alice, people, count)
        for _ in range(processes):
            home.start_deliveryd()
        await eventually(
            lambda: states(home, alice) == {"delivered": count}, "all to be delivered", 300
        )
        brought = gamma.brought + delta.brought
        assert len(brought) == count and set(brought.values()) == {1}
        query = "SELECT pts FROM user_events WHERE owner_login = %s ORDER BY pts"
        assert [r["pts"] for r in home.rows(query, [alice.login])] == list(range(1, count + 1))


async def test_killed_processes_lose_nothing(home, net):
    """Some of them are killed at work; what they held is done when its lease has run out."""
    count = 5_000 if CHAOS else 600
    async with Recorder("gamma", home.certificate) as gamma:
        alice = await net.user("alice", home)
        bob = await net.user("bob", known_to=(home,), urls=[gamma.route])
        make_rows(home, alice, [bob], count)
        for part in (1, 2, 3):
            process = home.start_deliveryd(delivery__maxInFlight=100)
            await eventually(
                lambda p=part: len(gamma.brought) > count * p // 5, "some deliveries", 60
            )
            home.kill_deliveryd(process)
        home.start_deliveryd()
        later(home, LEASE_MS)
        await eventually(
            lambda: states(home, alice) == {"delivered": count}, "all to be delivered", 120
        )
        assert len(gamma.brought) == count
        held = sum(n - 1 for n in gamma.brought.values())
        assert held <= 3 * 200, "only what was leased to a killed process came again"


# ---- kill -9 between attempts, and amid one ----


async def test_killed_between_each_pair_of_attempts(home, scene):
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        key = await scene.send()
        for number in (2, 3, 4, 5):
            before = home.delivery(key)
            process = home.start_deliveryd()
            later(home, SLOTS[number])
            await attempted(home, key, number + 1)
            home.kill_deliveryd(process)
            after = home.delivery(key)
            assert before["attempt_no"] == number and scene.calls("gamma") == [number]
            if number < 5:
                assert after["due_after_ms"] == SLOTS[number + 1]
        assert after["state"] == "failed"


async def test_killed_amid_an_attempt(home, scene):
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        key = await scene.send()
        scene.does["gamma"] = never
        process = home.start_deliveryd()
        due_now(home, key)
        await gamma.asked("ReceiveIncomingMessage", 2)
        home.kill_deliveryd(process)
        row = home.delivery(key)
        assert row["attempt_no"] == 2 and row["leased"]
        scene.does["gamma"] = answers()
        home.start_deliveryd()
        later(home, LEASE_MS + 1000)
        row = await became(home, key, "delivered")
        assert row["attempt_no"] == 2 and row["claims"] == 0
        assert scene.calls("gamma") == [3]


# ---- frozen past the lease ----


@pytest.mark.parametrize("late_answer", ["success", "failure"])
async def test_frozen_past_its_lease(home, scene, late_answer):
    """Another process has the row meanwhile. A late failure is refused; a late success is a fact."""
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        key = await scene.send()
        scene.does["gamma"] = in_turn(waits, answers() if late_answer == "success" else REFUSES)
        frozen = home.start_deliveryd()
        due_now(home, key)
        await gamma.asked("ReceiveIncomingMessage", 2)
        frozen.signal(signal.SIGSTOP)
        scene.does["gamma"] = never
        later(home, LEASE_MS + 1000)
        home.start_deliveryd()
        await gamma.asked("ReceiveIncomingMessage", 3)
        before = home.delivery(key)
        frozen.signal(signal.SIGCONT)
        gamma.gate.set()
        if late_answer == "success":
            row = await became(home, key, "delivered")
            assert row["delivered_via"] == "gamma"
        else:
            await eventually(
                lambda: "outcome=failed" in home.log.read_text()
                and "recorded=0" in home.log.read_text(),
                "the late result to be refused",
            )
            row = home.delivery(key)
            for column in ("lease_owner", "row_version", "attempt_no"):
                assert row[column] == before[column]


# ---- servers that keep us waiting ----


async def test_a_tarpit_does_not_keep_the_others(home, scene, net):
    """Thousands of rows for servers that swallow everything, all due before those of a good one."""
    pits, count, healthy = (20, 5_000, 100) if CHAOS else (6, 900, 40)
    servers = [FakeServer(f"pit{n}", home.certificate, never) for n in range(pits)]
    async with contexts(servers), Recorder("gamma", home.certificate) as gamma:
        alice = await net.user("alice", home)
        carol = await net.user("carol", home)
        stuck = [await net.user("eve", known_to=(home,), urls=[s.route]) for s in servers]
        bob = await net.user("bob", known_to=(home,), urls=[gamma.route])
        make_rows(home, alice, stuck, count, accepted_ago_ms=31_000)
        home.start_deliveryd()
        await eventually(lambda: sum(s.ops().count("ReceiveIncomingMessage") for s in servers)
                         >= pits, "the tarpits to be full", 30)  # fmt: skip
        make_rows(home, carol, [bob], healthy)
        started = time.monotonic()
        await eventually(lambda: states(home, carol) == {"delivered": healthy}, "deliveries", 60)
        assert time.monotonic() - started < 5
        assert states(home, alice) == {"accepted": count}
        for s in servers:
            s.hang_up()


class contexts:
    """Many servers at once."""

    def __init__(self, servers):
        self.servers = servers

    async def __aenter__(self):
        for s in self.servers:
            await s.__aenter__()

    async def __aexit__(self, *args):
        for s in self.servers:
            await s.__aexit__(*args)


async def test_a_dead_server_uses_up_slots_without_waiting(home, net):
    """Nobody listens: the rows fail one dial after the other, not one time limit after the other."""
    count = 2_000 if CHAOS else 300
    async with FakeServer("gone", home.certificate, tcp="refuses") as gone:
        alice = await net.user("alice", home)
        bob = await net.user("bob", known_to=(home,), urls=[gone.route])
        make_rows(home, alice, [bob], count)
        started = time.monotonic()
        home.start_deliveryd()
        query = "SELECT count(*) FROM dm_delivery_state WHERE from_login = %s AND attempt_no = 3"
        await eventually(lambda: home.value(query, [alice.login]) == count, "attempts", 30)
        assert time.monotonic() - started < 15
        assert gone.connections == 0


# ---- bounds ----


async def test_no_more_calls_at_once_than_allowed(home, net):
    count, most = 60, 3
    open_now, seen = 0, []

    async def slow(_, ws, request):
        nonlocal open_now
        open_now += 1
        seen.append(open_now)
        await asyncio.sleep(0.01)
        open_now -= 1
        await answers()(_, ws, request)

    async with Recorder("gamma", home.certificate, slow) as gamma:
        alice = await net.user("alice", home)
        bob = await net.user("bob", known_to=(home,), urls=[gamma.route])
        make_rows(home, alice, [bob], count)
        home.start_deliveryd(delivery__maxInFlightPerPeer=most)
        await eventually(lambda: states(home, alice) == {"delivered": count}, "deliveries", 60)
        assert max(seen) <= most and set(gamma.brought.values()) == {1}


# ---- stopping ----


async def test_a_stop_gives_back_what_has_not_begun(home, net):
    """One call hangs at a server, others wait for it: these go back unused, and at once."""
    count = 20
    async with FakeServer("gamma", home.certificate, never) as gamma:
        alice = await net.user("alice", home)
        bob = await net.user("bob", known_to=(home,), urls=[gamma.route])
        make_rows(home, alice, [bob], count)
        process = home.start_deliveryd(delivery__maxInFlightPerPeer=1)
        await gamma.asked("ReceiveIncomingMessage")
        started = time.monotonic()
        assert home.stop_deliveryd(process, 30)
        assert time.monotonic() - started < 15
        assert not home.rows("SELECT 1 FROM dm_delivery_state WHERE lease_owner IS NOT NULL")
        assert not home.rows("SELECT 1 FROM processes WHERE kind = 'deliveryd'")
        numbers = Counter(
            r["attempt_no"] for r in home.rows("SELECT attempt_no FROM dm_delivery_state")
        )
        calls = gamma.ops().count("ReceiveIncomingMessage")
        assert numbers == {3: calls, 2: count - calls}, "only a request that was written counts"


async def test_a_stop_waits_for_calls_that_end(home, scene):
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        key = await scene.send()
        scene.does["gamma"] = in_turn(waits, answers())
        process = home.start_deliveryd()
        due_now(home, key)
        await gamma.asked("ReceiveIncomingMessage", 2)
        process.signal(signal.SIGTERM)
        await eventually(lambda: "event=stopping" in home.log.read_text(), "the stop to begin")
        gamma.gate.set()
        await became(home, key, "delivered", 5)
        await eventually(lambda: process.returncode is not None, "the stop to end", 20)
        assert process.returncode == 0
        home.deliveryds.remove(process)


async def test_the_database_goes_away(home, scene):
    """Connections are lost and the pool makes new ones; the row is not lost."""
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        key = await scene.send()
        scene.does["gamma"] = answers()
        home.start_deliveryd()
        for pid in home.backends():
            home.rows("SELECT pg_terminate_backend(%s)", [pid])
        due_now(home, key)
        await became(home, key, "delivered")


# ---- configurations that are refused ----


@pytest.mark.parametrize(
    "setting, says",
    [
        ("delivery.leaseMs=30000", "at least 44000"),
        ("delivery.scheduleMs=5,10", "delivery.scheduleMs"),
        ("delivery.scheduleMs=0,10,10", "delivery.scheduleMs"),
        ("delivery.askSecondFrom=0", "delivery.askSecondFrom"),
    ],
)
def test_refused_configurations(home, setting, says):
    argv = [str(home.bin_dir / "deliveryd"), "-c", str(home.config), "--set", setting]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=30, env=lab.environment(), check=False
    )
    assert done.returncode == 2 and says in done.stderr


def test_a_server_without_a_name(home):
    argv = [str(home.bin_dir / "deliveryd"), "-c", str(home.config)]
    done = subprocess.run(
        [*argv, "--set", "server.SHiNE.login="],
        capture_output=True, text=True, timeout=30, env=lab.environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "no_server_login" in done.stderr
