"""What the database can do to us: connections that die at every step, a server that is away, errors
for one item of a batch, locks that stay, processes that freeze, results of every size.

Every request gets exactly one answer, in bounded time; service returns by itself. SHINE_CHAOS=N
(make chaos) makes it longer."""

import asyncio
import os
import random
import signal
import time

import psycopg2
import pytest
import shine_dm as dm
from example_client import ShineError, b64, pair_payload, text_of
from support.flood import COMPLETE, Flood, assert_kept, database_back, stored
from support.peers import FalsePeer, hello_answer
from support.waiting import eventually
from support.world import World

SEED = os.environ.get("SHINE_CRASH_SEED", "20240229")
CHAOS = int(os.environ.get("SHINE_CHAOS", "1"))
AWAY_SECONDS = 20 if CHAOS > 1 else 2

EXPECTED = r"database|db_|lost|terminat|recovery|starting up|shutting down"


@pytest.fixture(scope="module")
def own_world():
    """A PostgreSQL that may be stopped."""
    world = World(durable=True)
    yield world
    world.close()


def descriptors(server):
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in server.workers()}


def last_pts(server, user):
    query = "SELECT last_pts FROM user_event_heads WHERE owner_login = %s"
    return server.value(query, [user.login])


def hold_head(server, user):
    """The head of `user` is locked until the connection is closed."""
    holder = psycopg2.connect(server.admin_conninfo)
    query = "SELECT FROM user_event_heads WHERE owner_login = %s FOR UPDATE"
    holder.cursor().execute(query, [user.login])
    return holder


async def outcome(client, op, payload=None):
    """(status, error, seconds) of one request; checks what every 503 must say."""
    started = time.monotonic()
    try:
        await client.call(op, payload, timeout=30)
        return 200, "", time.monotonic() - started
    except ShineError as e:
        if e.status == 503:
            assert e.payload["retryAfterMs"] > 0
        return e.status, e.error, time.monotonic() - started


async def ping_until(client, over, longest):
    """Ping never needs the database."""
    while not over.is_set():
        started = time.monotonic()
        assert await client.call("Ping", {"ts": 1}) == {"ts": 1}
        longest[0] = max(longest[0], time.monotonic() - started)
        await asyncio.sleep(0.02)


async def test_connections_terminated_at_every_step(own_world, net):
    """While connecting, preparing, in the midst of batches and between them, while listening."""
    rng = random.Random(f"{SEED} steps")
    server = own_world.server("steps")
    server.expect(EXPECTED)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    listeners = await net.spread_sessions(carol, server)
    pinger = await net.connect(server)
    workers, before = server.workers(), descriptors(server)
    pairs = [alice.pair(carol, str(n)) for n in range(200 * min(CHAOS, 5))]
    flood = Flood(server, pairs, connections=3)

    def snipe():
        killed = 0
        while not over.is_set():
            query = "SELECT pg_terminate_backend(%s)" if rng.random() < 0.8 else None
            for pid in server.backends():
                if query is None or rng.random() < 0.4:
                    server.rows("SELECT pg_terminate_backend(%s)", [pid])
                    killed += 1
            time.sleep(rng.random() * 0.15)  # how long the connections live is what varies here
        return killed

    over, longest = asyncio.Event(), [0.0]
    sniping = asyncio.create_task(asyncio.to_thread(snipe))
    pinging = asyncio.create_task(ping_until(pinger, over, longest))
    flooding = asyncio.create_task(flood.run())
    await asyncio.wait([flooding], timeout=4.0 * min(CHAOS, 5))
    over.set()
    assert await sniping > 10
    await pinging
    await asyncio.wait_for(flooding, 60)
    assert longest[0] < 5

    assert server.workers() == workers  # nobody died
    assert not flood.lost
    await database_back(pinger, alice, 10)
    await assert_kept(flood, (alice, carol), f"{SEED=}")
    for listener in listeners:  # still logged in, and told everything
        assert (await listener.call("ListSessions"))["sessions"]
        await listener.wait_pts(len(flood.pairs), 20)
        assert listener.pts() == list(range(1, len(flood.pairs) + 1))
    # The connections are all back; nothing else was left open.
    await eventually(
        lambda: all(descriptors(server)[pid] <= before[pid] for pid in workers),
        f"descriptors back to {before}, now {descriptors(server)}",
        20,
    )
    await net.close()
    assert server.stop()
    assert server.complaints() == []


async def test_a_database_that_is_away(own_world, net):
    server = own_world.server("away")
    server.expect(EXPECTED)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    first, second = await net.spread_sessions(alice, server)
    pinger = await net.connect(server)
    over, longest = asyncio.Event(), [0.0]
    pinging = asyncio.create_task(ping_until(pinger, over, longest))
    for s in own_world.servers:
        s.forget_connection()
    own_world.postgres.process.signal(signal.SIGQUIT)
    own_world.postgres.stop()
    started, seen = time.monotonic(), set()
    while time.monotonic() - started < AWAY_SECONDS:
        for client in (first, second):
            for op, payload in (
                ("SendMessagePair", pair_payload(*alice.pair(carol))),
                ("GetUser", {"login": carol.login}),
                ("GetDirectMessages", {"withLogin": carol.login}),
                ("AuthChallenge", {"login": carol.login}),
                ("SessionChallenge", {"sessionId": first.session_id}),
                ("GetDmDeliveryStatus", {"messageKey": "a|b|1|1|2"}),
                ("ListSessions", {}),
            ):
                status, error, seconds = await outcome(client, op, payload)
                seen.add((op, status, error))
                assert seconds < 6, (op, seconds)
        await asyncio.sleep(0.05)
    over.set()
    await pinging
    assert longest[0] < 5
    # Keys that are in memory, and nonces that need no row, may be served all the while.
    for op, status, error in seen:
        assert (status, error) in {
            (503, "DB_UNAVAILABLE"),
            (503, "DIRECTORY_UNAVAILABLE"),
        } or (op, status) in {("GetUser", 200), ("AuthChallenge", 200), ("SessionChallenge", 200)}
    assert ("SendMessagePair", 503) in {(op, status) for op, status, _ in seen}

    own_world.postgres.start()
    started = time.monotonic()
    for client in (first, second):
        await eventually(lambda c=client: served(c, alice.pair(carol)), "service", 10)
    assert time.monotonic() - started < 10
    # Still logged in; what one process commits reaches the sessions of the other.
    total = last_pts(server, alice)
    for client in (first, second):
        await client.wait_pts(total, 20)
        assert client.pts() == list(range(1, total + 1))
    await net.close()
    assert server.stop()
    assert server.complaints() == []


async def served(client, pair):
    status, error, _ = await outcome(client, "SendMessagePair", pair_payload(*pair))
    assert status in (200, 503), error
    return status == 200


FAIL_ONE = """
    CREATE SEQUENCE fails;
    CREATE FUNCTION fail_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.base_key = '{key}' AND nextval('fails') <= {times} THEN
            RAISE 'by the test' USING ERRCODE = '{state}';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail_one BEFORE INSERT ON dm_delivery_state
        FOR EACH ROW EXECUTE FUNCTION fail_one();"""

ALWAYS = 1_000_000


@pytest.mark.parametrize(
    "state, times, status",
    [
        ("P0001", ALWAYS, 500),  # no reason we know
        ("53100", ALWAYS, 503),  # disk full
        ("40P01", 2, 200),  # deadlock: a moment later it is over
        ("40001", 2, 200),
        ("57P01", 1, 503),  # the connection goes with it
    ],
)
async def test_an_error_in_the_midst_of_a_batch(world, net, state, times, status):
    server = world.server("bad", frontd__workers=1)
    server.expect(r"by the test")
    try:
        alice, carol = await net.user("alice", server), await net.user("carol", server)
        pairs = [alice.pair(carol, str(n)) for n in range(40)]
        bad = 25
        key = dm.parse(pairs[bad][0]).base_key()
        server.rows(FAIL_ONE.format(key=key, times=times, state=state))
        c = await net.connect(server)
        sends = [outcome(c, "SendMessagePair", pair_payload(*pair)) for pair in pairs]
        outcomes = await asyncio.gather(*sends)
        if state == "57P01":  # nothing is known of any call on that connection: ask again
            assert {o[0] for o in outcomes} <= {200, 503}
            again = [outcome(c, "SendMessagePair", pair_payload(*p)) for p in pairs]
            await eventually(lambda: served(c, pairs[0]), "service", 10)
            assert {o[0] for o in await asyncio.gather(*again)} <= {200, 503}
        else:
            assert [o[0] for o in outcomes] == [
                status if n == bad else 200 for n in range(len(pairs))
            ]
            grouped = [int(line.split("items=")[1].split()[0])
                       for line in server.log.read_text().splitlines() if "db_batch_retry" in line]
            assert grouped and max(grouped) > 1, "no neighbours: nothing was shown"  # fmt: skip
        server.rows("DROP TRIGGER fail_one ON dm_delivery_state")
        assert (await c.send_pair(*pairs[bad]))["deliveryState"] == "delivered"
        await asyncio.gather(*(c.send_pair(*p) for p in pairs))
        assert set(stored(server, dict(enumerate(pairs))).values()) == {COMPLETE}
    finally:
        await net.close()
        server.stop()


async def test_a_lock_that_stays_keeps_nobody_else(world, net):
    """An open transaction holds the head of one user: his messages are refused, to be sent again;
    everybody else's go on."""
    server = world.server("locked", frontd__workers=1)
    users = [await net.user("user", server) for _ in range(8)]
    clients = [await net.connect(server) for _ in users]
    held, friend, others = users[0], users[1], users[2:]
    for n, user in enumerate(users):
        await clients[n].send_pair(*user.pair(users[n - 1]))
    holder = hold_head(server, held)
    over, longest, sent = asyncio.Event(), [], []

    async def others_send(n):
        while not over.is_set():
            started = time.monotonic()
            await clients[n + 2].send_pair(*others[n].pair(others[n - 1]))
            longest.append(time.monotonic() - started)

    async def held_sends():
        while not over.is_set():
            pair = friend.pair(held)
            sent.append((pair, await outcome(clients[1], "SendMessagePair", pair_payload(*pair))))

    tasks = [asyncio.create_task(others_send(n)) for n in range(len(others))]
    tasks += [asyncio.create_task(held_sends()) for _ in range(3)]
    await eventually(lambda: len(sent) >= 12, "refusals", 20)
    over.set()
    await asyncio.gather(*tasks)
    assert {(o[0], o[1]) for _, o in sent} == {(503, "DB_UNAVAILABLE")}
    assert max(o[2] for _, o in sent) < 5  # twice lock_timeout, and a slow machine
    assert len(longest) > 20 and max(longest) < 5
    holder.rollback()
    holder.close()
    for pair, _ in sent:
        assert (await clients[1].send_pair(*pair))["deliveryState"] == "delivered"
    await net.close()
    server.stop()


async def test_a_lock_that_stays_concerns_every_way_in(world, net):
    """Incoming copies and tombstones of the locked user are refused, and results of his attempts
    left to the schedule; his neighbours' are not."""
    server = world.server("ways", frontd__workers=1, delivery__firstReplyBudgetMs=20_000)
    server.expect(r"db_")
    gate = asyncio.Event()

    def peer(login):
        async def handler(request):
            if request["op"] == "ServerHello":
                return hello_answer(login)
            await gate.wait()
            return {}

        return FalsePeer(login, world.authority.issue(login), handler)

    async with peer("far") as far, peer("away") as away:
        bob = await net.user("bob", known_to=(server,), urls=[("far", far.url)])
        eve = await net.user("eve", known_to=(server,), urls=[("away", away.url)])
        # The friend of the locked user may be kept for a moment, too; others are not.
        names = ("held", "friend", "other", "third")
        held, friend, other, third = [await net.user(name, server) for name in names]
        c = await net.connect(server)
        for user in (held, friend, other):
            await c.send_pair(*user.pair(held))
        attempts = [
            c.start("SendMessagePair", pair_payload(*pair))
            for pair in (held.pair(bob), other.pair(eve))
        ]
        for at in (far, away):
            await eventually(lambda p=at: "ReceiveIncomingMessage" in p.ops(), "the attempts")
        holder = hold_head(server, held)
        gate.set()

        def requests(author, user):
            incoming = author.pair(user)[0]
            gone = dm.delete(author.login, user.login, author.key, dm.parse(incoming).ref())
            return [
                ("ReceiveIncomingMessage", {"incomingBlobB64": b64(incoming)}),
                ("DeleteMessage", {"blobB64": b64(gone)}),
            ]

        ours, theirs = requests(friend, held), requests(third, other)
        outcomes = await asyncio.gather(*(outcome(c, *request) for request in ours + theirs))
        assert [o[0] for o in outcomes] == [503, 503, 200, 200]
        assert max(o[2] for o in outcomes) < 6
        his, others = await asyncio.gather(*attempts)
        assert others.result()["deliveryState"] == "delivered"
        assert his.result()["deliveryState"] == "accepted"
        holder.close()
        for op, payload in ours:
            await c.call(op, payload)
    await net.close()
    server.stop()


async def test_a_frozen_worker_and_a_frozen_backend(world, net):
    """SIGSTOP: the other worker serves; the frozen one goes on afterwards as if nothing were."""
    server = world.server("frozen")
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    first, second = await net.spread_sessions(carol, server)
    frozen = server.worker_of(first)
    os.kill(frozen, signal.SIGSTOP)
    try:
        ping = first.start("Ping", {"ts": 7})
        for n in range(20):
            started = time.monotonic()
            await second.send_pair(*carol.pair(alice, str(n)))
            assert time.monotonic() - started < 3
        await second.wait_pts(20)
        assert not ping.done()
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert (await ping).payload == {"ts": 7}
    await first.wait_pts(20)
    assert first.pts() == list(range(1, 21))

    backend = server.backends(frozen)[0]
    os.kill(backend, signal.SIGSTOP)
    try:
        sends = [first.start("SendMessagePair", pair_payload(*carol.pair(alice))) for _ in range(9)]
        await asyncio.wait(sends, timeout=0.5)
        for n in range(30):  # at most one connection hangs
            asked = first.start("GetDirectMessages", {"withLogin": alice.login, "limit": 1})
            await asyncio.wait([asked], timeout=0.3)
            sends.append(asked)
        answered = sum(future.done() for future in sends)
        assert answered > 20, answered
    finally:
        os.kill(backend, signal.SIGCONT)
    assert {(await future).status for future in sends} == {200}
    await net.close()
    server.stop()


async def test_results_and_messages_of_every_size(world, net):
    """Around the 16 KB that libpq reads at once; megabytes (make chaos: ten) through pages that
    hold one of them."""
    server = world.server("large", limits__clientBodyBytes=1_048_576)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    a, c = await net.session(alice), await net.session(carol)
    sizes = [k * 1024 + d for k in (15, 16, 17) for d in (-300, -1, 0, 1)]
    sizes += [1_048_575] * (10 if CHAOS > 1 else 3)
    texts = ["x" * size for size in sizes]  # and one byte that says: plain text
    for text in texts:
        await a.send_pair(*alice.pair(carol, text))
    items = [item async for item in a.history(carol.login)]
    assert [len(text_of(item)) for item in reversed(items)] == sizes
    for limit in (1, 7):
        some = [item["messageKey"] async for item in a.history(carol.login, limit=limit)]
        assert some == [item["messageKey"] for item in items]
    await c.wait_pts(len(sizes))
    assert [len(text_of(event)) for event in c.events] == sizes
    await net.close()
    server.stop()
