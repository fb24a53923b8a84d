"""kill -9 of whatever there is, at drawn moments of a stream of sends.

What was answered 200 is there afterwards, all of it. What was not answered is there completely or
not at all, and sending it again succeeds. SHINE_CRASH_SEED repeats a run."""

import asyncio
import os
import random
import signal
import time

import lab
import pytest
import shine_dm as dm
import websockets
from example_client import ConnectionClosed, ShineError
from support.net import Net
from support.waiting import eventually
from support.world import World

SEED = int(os.environ.get("SHINE_CRASH_SEED", "20240117"))
PAIRS, CONNECTIONS = 600, 8

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


def backends(server):
    query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    return [r["pid"] for r in server.rows(query, [server.database])]


def kill_backend(server, rng):
    """PostgreSQL then ends every session, ours as well, and recovers."""
    pids = backends(server)
    if pids:
        server.forget_connection()
        os.kill(rng.choice(pids), signal.SIGKILL)
        lab.wait_until(server.postgres.accepts, 90, "recovery")


def terminate_backend(server, rng):
    """One connection ends in order, as an operator would do it."""
    pids = backends(server)
    if pids:
        server.rows("SELECT pg_terminate_backend(%s)", [rng.choice(pids)])


class Stream:
    """Sends pairs over several connections that come back when they are lost."""

    def __init__(self, server, pairs):
        self.server, self.pairs = server, pairs
        self.answered, self.refused, self.lost = {}, [], []
        self._next = iter(range(len(pairs)))
        self.ended = asyncio.Event()

    async def run(self):
        await asyncio.gather(*(self._connection() for _ in range(CONNECTIONS)))

    async def _connection(self):
        net, client = Net(), None
        try:
            for n in self._next:
                if client is None or client.closed:
                    client = await reconnect(net, self.server)
                await self._send(client, n)
        finally:
            await net.close()

    async def _send(self, client, n):
        try:
            self.answered[n] = await client.send_pair(*self.pairs[n], timeout=30)
        except ShineError as e:
            assert e.status == 503, e
            self.refused.append(n)
            self.ended.set()
            await asyncio.sleep(e.payload["retryAfterMs"] / 1000)  # as the server asks
        except ConnectionClosed:
            self.lost.append(n)
        self.ended.set()

    async def disturb(self, crashes, rng):
        """Crash something whenever a drawn number of sends has ended."""
        moments = sorted(rng.sample(range(20, len(self.pairs) - 100), len(crashes)))
        for moment, crash in zip(moments, crashes):
            while len(self.answered) + len(self.refused) + len(self.lost) < moment:
                self.ended.clear()
                await self.ended.wait()
            crash(self.server, rng)


async def reconnect(net, server):
    async def attempt():
        try:
            return await net.connect(server, open_timeout=5)
        except (OSError, asyncio.TimeoutError, websockets.InvalidHandshake):
            return None

    return await eventually(attempt, "a connection", timeout=30)


def state_of(server, pair):
    """What is stored of a pair, as counts: (copies with these bytes, rows, events)."""
    incoming, outgoing = (dm.parse(blob) for blob in pair)
    row = server.rows(
        """SELECT (SELECT count(*) FROM signed_messages
                    WHERE base_key = %(base)s AND blob IN (%(in)s, %(out)s)) AS copies,
                  (SELECT count(*) FROM dm_delivery_state
                    WHERE from_login = %(from)s AND outgoing_key = %(out_key)s
                      AND state = 'delivered') AS rows,
                  (SELECT count(*) FROM user_events
                    WHERE owner_login = %(from)s AND message_key = %(out_key)s) AS told_from,
                  (SELECT count(*) FROM user_events
                    WHERE owner_login = %(to)s AND message_key = %(in_key)s) AS told_to""",
        {
            "base": incoming.base_key(),
            "from": incoming.from_,
            "to": incoming.to,
            "in": pair[0],
            "out": pair[1],
            "in_key": incoming.message_key(),
            "out_key": outgoing.message_key(),
        },
    )[0]
    return tuple(row.values())


COMPLETE, NOTHING = (2, 1, 1, 1), (0, 0, 0, 0)


def assert_gapless(server, user, messages):
    query = "SELECT pts FROM user_events WHERE owner_login = %s ORDER BY pts"
    assert [r["pts"] for r in server.rows(query, [user.login])] == list(range(1, messages + 1))


CRASHES = {
    "workers": [kill_worker] * 5,
    "masters": [kill_master] * 3,
    "backends": [kill_backend, terminate_backend, terminate_backend, kill_backend],
    "everything": [kill_worker, kill_backend, kill_master, terminate_backend, kill_worker],
}


@pytest.mark.parametrize("kind", CRASHES)
async def test_what_was_promised_survives(durable, net, kind):
    rng = random.Random(f"{SEED} {kind}")
    server = durable.server("crash")
    server.expect(EXPECTED)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    await net.close()
    pairs = [alice.pair(carol, f"{kind} {n}") for n in range(PAIRS)]
    stream = Stream(server, pairs)
    async with asyncio.TaskGroup() as together:
        together.create_task(stream.run())
        together.create_task(stream.disturb(CRASHES[kind], rng))
    assert len(stream.answered) + len(stream.refused) + len(stream.lost) == PAIRS
    assert len(stream.answered) > PAIRS / 2

    recovered = Net()
    client = await reconnect(recovered, server)
    await eventually(lambda: answers(client, alice.login), "the database to be back", 60)
    for n in stream.answered:
        assert state_of(server, pairs[n]) == COMPLETE, f"answered pair {n} ({SEED=})"
    for n in stream.refused + stream.lost:
        assert state_of(server, pairs[n]) in (COMPLETE, NOTHING), f"pair {n} ({SEED=})"
        answer = await client.send_pair(*pairs[n])
        assert answer["deliveryState"] == "delivered"
        assert state_of(server, pairs[n]) == COMPLETE
    for user in (alice, carol):
        assert_gapless(server, user, PAIRS)
    await recovered.close()
    assert server.stop()
    assert server.complaints() == []


async def answers(client, login):
    try:
        return await client.call("GetUser", {"login": login})
    except ShineError as e:
        assert e.status == 503, e
        return None


async def test_a_database_that_is_away_is_503_and_comes_back(durable, net):
    server = durable.server("away")
    server.expect(EXPECTED)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    c = await net.session(alice)
    for s in durable.servers:
        s.forget_connection()
    durable.postgres.stop()
    try:
        pair = alice.pair(carol)
        started = time.monotonic()
        with pytest.raises(ShineError) as e:
            await c.send_pair(*pair)
        # Which one it is depends on whether the worker knew the users already.
        assert e.value.status == 503
        assert e.value.error == "DB_UNAVAILABLE"
        assert e.value.payload["retryAfterMs"] > 0 and time.monotonic() - started < 15
        assert await c.call("Ping", {"ts": 1}) == {"ts": 1}
    finally:
        durable.postgres.start()
    await eventually(lambda: answers(c, alice.login), "the database to be back", 60)
    assert (await c.send_pair(*pair))["deliveryState"] == "delivered"
    got = await c.wait_event("IncomingDirectMessage", timeout=30)
    assert got["pts"] == 1
    await net.close()
    assert server.stop()
    assert server.complaints() == []


async def test_a_send_whose_process_dies_is_retried_by_the_schedule(durable, net):
    """The lease of the first attempt ends by itself; nobody else has to notice the death."""
    from support.peers import SilentServer

    server = durable.server("dying", delivery__firstReplyBudgetMs=200)
    server.expect(EXPECTED)
    async with SilentServer() as silent:
        alice = await net.user("alice", server)
        bob = await net.user("bob", known_to=(server,), urls=[("silent", silent.url)])
        sent = await (await net.connect(server)).send_pair(*alice.pair(bob))
        server.kill_master()
        row = server.delivery(sent["outgoingKey"])
        assert row["state"] == "accepted" and row["leased"]
        assert row["due_after_ms"] == 30_000
        assert row["lease_until_ms"] - row["accepted_at_ms"] == 30_000
    server.start().ready()
    c = await net.connect(server)
    for blob in server.rows("SELECT blob FROM signed_messages WHERE owner_login = %s", [bob.login]):
        assert dm.parse(bytes(blob["blob"])).message_key() == sent["incomingKey"]
    assert (await c.call("GetDmDeliveryStatus", {"messageKey": sent["outgoingKey"]}))["known"]
    await net.close()
    assert server.stop()
    assert server.complaints() == []
