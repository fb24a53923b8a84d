"""Killing and stopping under a stream of pipelined sends, at drawn moments.

What was answered 200 is there afterwards, complete; every other pair is there completely or not at
all; sending it again succeeds and changes nothing more. SHINE_CRASH_SEED repeats a run,
SHINE_CHAOS=N (make chaos) makes it up to five times as long."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest
from example_client import ConnectionClosed, ShineError, pair_payload
from support.flood import Flood, assert_kept, reconnect
from support.net import Net
from support.peers import SilentServer
from support.waiting import eventually
from support.world import World

SEED = os.environ.get("SHINE_CRASH_SEED", "20240229")
CHAOS = int(os.environ.get("SHINE_CHAOS", "1"))

PER_KILL = 80  # pairs

# What these tests do to it may be told as an error.
EXPECTED = r"worker|database|db_|lost|terminat|recovery|starting up|shutting down"


@pytest.fixture(scope="module")
def durable():
    world = World(durable=True)
    yield world
    world.close()


def kill_worker(server, rng):
    if server.workers():
        server.kill_worker(rng.randrange(len(server.workers())))


def kill_master(server, rng):
    server.kill_master()
    server.start()


def crash_database(server, rng):
    """All of PostgreSQL dies at once and recovers from its log."""
    server.forget_connection()
    server.postgres.process.signal(signal.SIGQUIT)
    server.postgres.stop()
    server.postgres.start()


def terminate_backends(server, rng):
    for pid in server.backends():
        if rng.random() < 0.7:
            server.rows("SELECT pg_terminate_backend(%s)", [pid])


KILLS = {
    "workers": [kill_worker] * 3,
    "masters": [kill_master] * 2,
    "connections": [terminate_backends] * 4,
    "database": [crash_database] * 2,
    "everything": [kill_worker, terminate_backends, crash_database, kill_master],
}


# What one kind of kill does alone is for make chaos; test_crash.py has a part of it.
@pytest.mark.parametrize("kind", KILLS if CHAOS > 1 else ["everything"])
async def test_acknowledged_pairs_survive(durable, net, kind):
    rng = random.Random(f"{SEED} {kind}")
    kills = KILLS[kind] * min(CHAOS, 5)
    server = durable.server("kill")
    server.expect(EXPECTED)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    await net.close()
    pairs = [alice.pair(carol, f"{kind} {n}") for n in range(PER_KILL * len(kills))]
    flood = Flood(server, pairs)

    async def disturb():
        for n, kill in enumerate(kills):
            await flood.reaches(PER_KILL * n + rng.randrange(20, PER_KILL))
            # In this thread: what it starts ends with the thread that started it.
            kill(server, rng)

    async with asyncio.TaskGroup() as together:
        together.create_task(flood.run())
        together.create_task(disturb())
    assert len(flood.answered) > len(pairs) / 3
    await assert_kept(flood, (alice, carol), f"{SEED=}")
    assert server.stop()
    assert server.complaints() == []


async def served(client, pair):
    """A worker that has just started answers 503 until it has its database."""
    try:
        await client.send_pair(*pair)
    except ShineError as e:
        assert e.error == "DB_UNAVAILABLE"
        return False
    return True


async def test_a_killed_worker_is_replaced_and_the_others_serve(durable, net):
    server = durable.server("one")
    server.expect(EXPECTED)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    first, second = await net.spread_sessions(alice, server)
    old = server.workers()
    os.kill(server.worker_of(first), signal.SIGKILL)
    with pytest.raises(ConnectionClosed):
        await first.call("Ping")
    started = time.monotonic()
    for _ in range(20):  # nobody is refused, before and after the new worker is there
        client = await net.connect(server)
        pair = alice.pair(carol)
        await eventually(lambda c=client, p=pair: served(c, p), "service")
        await client.close()
    await second.send_pair(*alice.pair(carol))
    await eventually(lambda: len(set(server.workers()) - set(old)) == 1, "a new worker")
    await eventually(lambda: len(server.workers()) == 2, "two workers")
    assert time.monotonic() - started < 10
    server.ready()
    await net.spread_sessions(alice, server)  # the new one serves as well
    await net.close()
    assert server.stop()
    assert server.complaints() == []


async def test_workers_of_a_killed_master_end_and_a_new_one_serves(durable, net):
    server = durable.server("headless")
    server.expect(EXPECTED)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    clients = await net.spread_sessions(alice, server)
    old = server.workers()
    server.kill_master()
    for client in clients:
        assert (await client.wait_closed()).code == 1001
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old), "their end")
    started = time.monotonic()
    server.start().ready()
    client = await net.connect(server)
    await client.session_login(clients[0].session_id, clients[0].session_key)
    await client.send_pair(*alice.pair(carol))
    assert time.monotonic() - started < 8
    await net.close()
    assert server.stop()
    assert server.complaints() == []


async def test_sigterm_under_load(durable, net):
    """Every request under way is answered or its connection closed with 1001; leases go back."""
    server = durable.server("term")
    async with SilentServer() as silent:
        alice, carol = await net.user("alice", server), await net.user("carol", server)
        bob = await net.user("bob", known_to=(server,), urls=[("silent", silent.url)])
        flood = Flood(server, [alice.pair(carol, str(n)) for n in range(4000)])
        away = await net.connect(server)
        running = asyncio.create_task(flood.run())
        await flood.reaches(100)
        attempts = [
            away.start("SendMessagePair", pair_payload(*alice.pair(bob))) for _ in range(10)
        ]
        await eventually(
            lambda: server.value("SELECT count(*) FROM dm_delivery_state WHERE to_login = %s",
                                 [bob.login]) == 10,
            "ten attempts under way",
        )  # fmt: skip
        flood.stop = True
        started = time.monotonic()
        assert await asyncio.to_thread(server.stop)
        assert time.monotonic() - started < 30
        await running
        assert {end.code for end in flood.closed} <= {1001}
        for answer in await asyncio.gather(*attempts):
            assert answer.result()["deliveryState"] == "accepted"
        assert (await away.wait_closed()).code == 1001
        for left in (
            "dm_delivery_state WHERE lease_owner IS NOT NULL",
            "active_sessions WHERE connected_to IS NOT NULL",
            "processes",
        ):
            assert server.value(f"SELECT count(*) FROM {left}") == 0, left
    assert server.complaints() == []
    server.start().ready()
    flood.pairs = flood.pairs[: flood.ended]
    assert len(flood.answered) >= 100
    again = Net()
    client = await reconnect(again, server)
    for n in flood.answered:
        assert (await client.send_pair(*flood.pairs[n]))["deliveryState"] == "delivered"
    kept = server.value("SELECT count(*) FROM user_events WHERE owner_login = %s", [carol.login])
    assert len(flood.answered) <= kept <= len(flood.pairs)
    await again.close()
    assert server.stop()
    assert server.complaints() == []
