"""Connections to other servers: whose address counts, what goes wrong and is told about it."""

import asyncio
import contextlib
import os
import re
import signal

import lab
import pytest
from support import fake_server as fake
from support.fake_server import FakeServer
from support.waiting import eventually

BUDGET_MS = 400
WRITTEN_S = 20  # peer_connections is written every three seconds


def small(world, login, **settings):
    """A server of one worker that is impatient with others and does not ask them who users are; not
    started."""
    pool = {f"server__pool__{k}Seconds": 2 for k in ("requestTimeout", "connectTimeout")}
    given = {"delivery__firstReplyBudgetMs": BUDGET_MS, "frontd__workers": 1, **pool, **settings}
    given["sync__importUserProfileFromPartner__enabled"] = "off"
    return world.server(login, start=False, **given)


@pytest.fixture(scope="module")
def certificates(world, tmp_path_factory):
    issue, stranger = world.authority.issue, lab.Authority(tmp_path_factory.mktemp("ca"))
    return {
        "good": issue("peers-good"),
        "wrong name": issue("peers-wrong", hosts=["other.example", "127.0.0.2"]),
        "expired": issue("peers-expired", days=-1),
        "stranger": stranger.issue("peers-stranger"),
    }


async def closes_after_answering(server, ws, request):
    await fake.answers()(server, ws, request)
    await ws.close(1000)


# How a server fails, and the one word for it.
FAILURES = {
    "silent": ({"request": fake.never}, "no_answer"),
    "confused": ({"request": fake.answers(requestId="somebody-elses")}, "answered_another_id"),
    "shy": ({"request": closes_after_answering}, "closed_after_one_request"),
    "expired": ({"certificate": "expired"}, "tls_certificate_expired"),
    "misnamed": ({"certificate": "wrong name"}, "tls_certificate_for_another_name"),
    "untrusted": ({"certificate": "stranger"}, "tls_certificate_not_trusted"),
    "resetting": ({"tcp": "tls_resets"}, "reset_in_tls_handshake"),
    "rude": ({"tcp": "tls_hangs_up"}, "closed_in_tls_handshake"),
    "plain": ({"tcp": "tls_garbage"}, "tls_handshake_failed"),
    "refusing": ({"tcp": "refuses"}, "unreachable_refused"),
    "mute": ({"tcp": "silent"}, "handshake_timeout"),
    "webless": ({"upgrade": 404}, "upgrade_refused"),
    "distrustful": ({"hello": fake.answers(403, "NO")}, "hello_refused"),
    "speechless": ({"hello": fake.never}, "hello_timeout"),
    "impostor": ({"hello": fake.answers(**fake.hello_answer("somebody"))}, "wrong_server_login"),
    "breaking": ({"request": fake.resets}, "lost"),
}


def shown(server):
    """v_peers: the last error by login."""
    rows = server.rows("SELECT server_login, last_error FROM v_peers WHERE process = 'frontd'")
    return {row["server_login"]: row["last_error"] for row in rows}


def open_files(server):
    (worker,) = server.workers()
    return len(os.listdir(f"/proc/{worker}/fd"))


async def test_each_failure_has_its_own_word(world, net, certificates):
    """Sixteen bad servers at once, a name that does not exist, a blocked one, and a good one that
    must not notice."""
    hub = small(world, "hub")
    hub.shinectl("server", "block", "banned")  # nobody has heard of it yet
    hub.start().ready()
    good = FakeServer("good", certificates["good"])
    fakes = [
        FakeServer(login, certificates[how.get("certificate", "good")],
                   **{k: v for k, v in how.items() if k != "certificate"})
        for login, (how, _) in FAILURES.items()
    ]  # fmt: skip
    want = {login: word for login, (_, word) in FAILURES.items()}
    want |= {"nowhere": "unreachable_unknown_host", "banned": "blocked"}
    alice = await net.user("alice", hub)
    async with contextlib.AsyncExitStack() as stack:
        for server in (good, *fakes):
            await stack.enter_async_context(server)
        routes = [server.route for server in fakes]
        routes += [("nowhere", "wss://nowhere.invalid/ws"), ("banned", "wss://127.0.0.1:9/ws")]
        bobs = [await net.user("bob", known_to=(hub,), urls=[route]) for route in routes]
        carol = await net.user("carol", known_to=(hub,), urls=[good.route])
        client = await net.session(alice)
        first = await client.send_pair(*alice.pair(carol, "first"))
        assert first["deliveryState"] == "delivered"
        before = open_files(hub)

        async def send_all():
            return await asyncio.gather(*(client.send_pair(*alice.pair(b)) for b in bobs))

        for _ in range(3):
            sending = asyncio.create_task(send_all())
            loop = asyncio.get_running_loop()
            for _ in range(5):
                begun = loop.time()
                sent = await client.send_pair(*alice.pair(carol))
                assert sent["deliveryState"] == "delivered" and loop.time() - begun < 1.5
            states = {
                login: s["deliveryState"] for (login, _), s in zip(routes, await sending)
            }
            assert set(states.values()) == {"accepted", "delivered"}
            assert [login for login, s in states.items() if s == "delivered"] == ["shy"]
            # Everything that was tried has ended before the next round.
            await eventually(
                lambda: hub.value("SELECT count(*) AS n FROM dm_delivery_state WHERE lease_owner IS NOT NULL") == 0,
                "the attempts to end", 45,
            )  # fmt: skip
        word = {**want, "good": ""}
        try:
            await eventually(lambda: shown(hub) == word, "reasons", WRITTEN_S)
        except AssertionError:
            assert shown(hub) == word
        (banned,) = hub.rows("SELECT state, blocked, partner, ok FROM v_peers WHERE server_login = 'banned'")
        assert banned == {"state": "blocked", "blocked": True, "partner": True, "ok": 0}
        counts = "SELECT ok, reconnects, late, timed_out FROM v_peers WHERE server_login = %s"
        for login, numbers in (("shy", (3, 2, 0, 0)), ("confused", (0, 2, 3, 3))):
            await eventually(
                lambda x=login, n=numbers: tuple(hub.rows(counts, [x])[0].values()) == n,
                f"the counters of {login}", WRITTEN_S,
            )  # fmt: skip
        assert good.connections == 1

        # An operator sees the same at a terminal, and in the log.
        lines = hub.shinectl("peers").stdout.splitlines()
        (line,) = [line for line in lines if line.startswith("expired ")]
        assert "tls_certificate_expired" in line and "frontd" in line
        (line,) = [line for line in lines if line.startswith("good ")]
        assert "ready" in line and "ok 16, failed 0, timed out 0" in line
        (worker,) = hub.workers()
        os.kill(worker, signal.SIGUSR1)
        line = re.compile(r"event=peer peer=good url=\S+ state=ready .*in_flight=0 .*ok=16 ")
        await eventually(lambda: line.search(hub.log.read_text()), "the snapshot")

    # The servers are gone; what was opened for them is closed.
    await eventually(lambda: open_files(hub) <= before, "the sockets to be closed", 30)
    assert hub.stop()
    assert hub.rows("SELECT * FROM peer_connections") == []  # they go with the process


async def test_the_partners_row_wins_over_the_users_word(world, net, certificates):
    hub = small(world, "rowan")
    true = FakeServer("delta", certificates["good"])
    false = FakeServer("delta", certificates["good"])
    async with true, false:
        hub.shinectl("server", "add", "delta", "--url", true.url)
        hub.start().ready()
        alice = await net.user("alice", hub)
        bob = await net.user("bob", known_to=(hub,), urls=[("delta", false.url)])
        client = await net.session(alice)
        sent = await client.send_pair(*alice.pair(bob, "to the row"))
        assert sent["deliveryState"] == "delivered"
        assert true.ops() == ["ServerHello", "ReceiveIncomingMessage"] and false.connections == 0

        # The row changes: from then on the new address, and the old connection is closed.
        hub.shinectl("server", "add", "delta", "--url", false.url)
        os.kill(hub.frontd.pid, signal.SIGHUP)  # or within 30 s
        await eventually(lambda: not true.is_connected(), "the old connection to end")
        sent = await client.send_pair(*alice.pair(bob, "to the new row"))
        assert sent["deliveryState"] == "delivered"
        assert false.ops() == ["ServerHello", "ReceiveIncomingMessage"] and len(true.ops()) == 2

        # Blocked, also for what comes next; and let in again.
        told = hub.shinectl("server", "block", "delta").stdout
        assert told == "server delta is blocked\n"
        os.kill(hub.frontd.pid, signal.SIGHUP)
        await eventually(lambda: not false.is_connected(), "the connection to end")
        sent = await client.send_pair(*alice.pair(bob, "to nobody"))
        assert sent["deliveryState"] == "accepted"
        assert "blocked" in hub.delivery(sent["outgoingKey"])["last_error"]
        for told in ("is not blocked", "is not blocked, as before"):
            assert hub.shinectl("server", "unblock", "delta").stdout == f"server delta {told}\n"
        os.kill(hub.frontd.pid, signal.SIGHUP)

        async def works_again():
            sent = await client.send_pair(*alice.pair(bob, "again"))
            return sent["deliveryState"] == "delivered"

        await eventually(works_again, "delivery after the block")
    assert hub.stop()


async def test_a_users_record_moves_nobody_elses_messages(world, net, certificates):
    hub = small(world, "sorrel")
    hub.start().ready()
    true = FakeServer("delta", certificates["good"])
    false = FakeServer("delta", certificates["good"])
    async with true, false:
        alice = await net.user("alice", hub)
        mallory = await net.user("mallory", known_to=(hub,), urls=[("delta", false.url)])
        bob = await net.user("bob", known_to=(hub,), urls=[("delta", true.url)])
        client = await net.session(alice)
        for _ in range(3):
            sent = await client.send_pair(*alice.pair(mallory))
            assert sent["deliveryState"] == "delivered"
            sent = await client.send_pair(*alice.pair(bob))
            assert sent["deliveryState"] == "delivered"
        assert true.ops().count("ReceiveIncomingMessage") == 3
        assert false.ops().count("ReceiveIncomingMessage") == 3
        # Nobody names it any more: the connection goes.
        await eventually(
            lambda: hub.value("SELECT count(*) AS n FROM v_peers WHERE state = 'ready'") == 2,
            "both to be shown", WRITTEN_S,
        )  # fmt: skip
        hub.shinectl("user", "set-servers", mallory.login, "--access", f"delta={true.url}")
        os.kill(hub.frontd.pid, signal.SIGHUP)
        await eventually(lambda: not false.is_connected(), "the connection to end")
        await eventually(
            lambda: hub.value("SELECT count(*) AS n FROM v_peers") == 1, "one line", WRITTEN_S
        )
        assert true.is_connected()
    assert hub.stop()


async def test_private_addresses_are_the_operators_to_name(world, net, certificates):
    hub = small(world, "tansy", server__pool__allowPrivateAddresses="off")
    async with FakeServer("inside", certificates["good"]) as inside:
        hub.shinectl("server", "add", "friend", "--url", inside.url)
        inside.hello = fake.answers(**fake.hello_answer("friend"))
        hub.start().ready()
        alice = await net.user("alice", hub)
        bob = await net.user("bob", known_to=(hub,), urls=[("stranger", inside.url)])
        carol = await net.user("carol", known_to=(hub,), urls=[("friend", "wss://x.example/ws")])
        client = await net.session(alice)
        sent = await client.send_pair(*alice.pair(bob))
        assert sent["deliveryState"] == "accepted" and inside.connections == 0
        assert "address_refused" in hub.delivery(sent["outgoingKey"])["last_error"]
        sent = await client.send_pair(*alice.pair(carol))
        assert sent["deliveryState"] == "delivered" and inside.connections == 1
        want = {"stranger": "address_refused", "friend": ""}
        await eventually(lambda: shown(hub) == want, "both to be shown", WRITTEN_S)
    assert hub.stop()


async def test_eager_connections(world, net, certificates):
    """Nobody calls, and all known servers are connected; one that hangs up is called again."""
    hub = small(world, "umber", server__pool__eager="on")
    partner, named = (FakeServer(x, certificates["good"]) for x in ("partner", "named"))
    async with partner, named:
        hub.shinectl("server", "add", "partner", "--url", partner.url)
        hub.start().ready()
        await eventually(partner.is_connected, "the partner's connection")
        await net.user("bob", known_to=(hub,), urls=[named.route])
        os.kill(hub.frontd.pid, signal.SIGHUP)
        await eventually(named.is_connected, "the connection of a server that a user names")
        # It was lost. Nobody waits for it, so it is not dialled at once, unless it makes contact.
        named.hang_up()
        await eventually(lambda: not named.is_connected(), "the end")

        async def comes_back():
            client = await net.connect(hub)
            await client.call("ServerHello", {"serverLogin": "named", "protocolVersion": 1})
            return named.is_connected()

        await eventually(comes_back, "the connection after contact")
    assert hub.stop()


async def test_two_hundred_servers_after_a_restart(world):
    """All known servers are dialled, and no second holds more than a tenth of that."""
    hub = small(world, "weld", server__pool__eager="on", server__pool__dialsPerSecond=20)
    dials = []
    loop = asyncio.get_running_loop()

    async def accept(_, writer):
        dials.append(loop.time())
        writer.transport.abort()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    hub.rows(
        "INSERT INTO sync_servers (server_login, url, updated_at_ms)"
        " SELECT 'many' || i, 'wss://127.0.0.1:' || %s || '/ws', 0 FROM generate_series(1, 200) i"
        " RETURNING 1",
        [port],
    )
    hub.start()
    try:
        await eventually(lambda: len(dials) >= 200, "200 dials", 60)
        busiest = max(sum(1 for t in dials if at <= t < at + 1) for at in dials)
        assert busiest <= 23, busiest  # 20 by the dialler's clock
        assert dials[-1] - dials[0] < 40
    finally:
        listener.close()
        await listener.wait_closed()
    assert hub.stop()
