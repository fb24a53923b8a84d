"""The life of the processes: stop, reload, crash, restart, and clients that do not read."""

import asyncio
import os
import signal
import ssl

import lab
import example_client
from example_client import unb64
from support.peers import SilentServer
from support.waiting import eventually


async def test_sigterm_closes_with_1001_and_frees_everything(world, net):
    server = world.server("stopping")
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    a = await net.session(alice)
    assert (await a.send_text(carol.login, "x"))["deliveryState"] == "delivered"
    pid = server.frontd.pid
    workers = server.workers()
    assert len(workers) == 2
    os.kill(pid, signal.SIGTERM)
    assert (await a.wait_closed()).code == 1001
    assert server.stop()
    assert all(not os.path.exists(f"/proc/{w}") for w in workers)
    assert server.rows("SELECT 1 FROM processes") == []
    assert server.rows("SELECT 1 FROM active_sessions WHERE connected_to IS NOT NULL") == []


async def test_a_killed_worker_is_replaced_and_its_sessions_are_let_go(world, net):
    server = world.server("crashing")
    server.expect("worker")
    alice = await net.user("alice", server)
    one, two = await net.spread_sessions(alice, server)
    before = server.workers()
    killed = server.kill_worker()
    done = [s for s in (one, two) if await lost(s)]
    assert len(done) == 1
    other = two if done[0] is one else one
    await eventually(lambda: len(server.workers()) == 2, "a new worker")
    assert killed not in server.workers() and len(set(before) & set(server.workers())) == 1
    again = await net.connect(server)
    await again.session_login(done[0].session_id, done[0].session_key, alice.key)
    sent = await again.send_text(alice.login, "on a new worker")
    for session in (again, other):
        await session.wait_event(
            "IncomingDirectMessage", lambda p: p["messageKey"] == sent["outgoingKey"]
        )
    await net.close()
    assert server.stop()


async def lost(session):
    try:
        await session.wait_closed(timeout=3)
        return True
    except TimeoutError:
        return False


async def test_workers_end_with_their_master(world, net):
    server = world.server("headless")
    workers = server.workers()
    server.kill_master()
    await eventually(
        lambda: all(not os.path.exists(f"/proc/{w}") for w in workers), "the workers to stop"
    )
    server.start().ready()
    assert (await (await net.connect(server)).call("Ping", {"ts": 1})) == {"ts": 1}
    await net.close()
    assert server.stop()


def test_a_database_without_schema_is_refused_with_the_way_out(world):
    server = world.server("bare", start=False)
    server.forget_connection()
    world.postgres.sql(f'DROP DATABASE "{server.database}"')
    world.postgres.create_database(server.database)
    server.start()
    lab.wait_until(lambda: server.frontd.returncode is not None, 20, "the refusal")
    assert server.frontd.returncode != 0
    assert "shinectl" in server.log.read_text() and "migrate" in server.log.read_text()
    server.frontd = None
    server.expect("schema")
    world.servers.remove(server)
    world.postgres.sql(f'DROP DATABASE "{server.database}"')


async def test_a_stop_gives_back_what_it_is_working_on(world, net):
    """An attempt that hangs neither holds up the stop nor keeps its row."""
    server = world.server("leaving", delivery__firstReplyBudgetMs=100)
    async with SilentServer() as silent:
        alice = await net.user("alice", server)
        bob = await net.user("bob", known_to=(server,), urls=[("silent", silent.url)])
        sent = await (await net.connect(server)).send_pair(*alice.pair(bob))
        assert server.delivery(sent["outgoingKey"])["leased"]
        stopping = asyncio.get_running_loop().run_in_executor(None, server.stop)
        assert await stopping
    row = server.delivery(sent["outgoingKey"])
    assert row["state"] == "accepted" and row["lease_owner"] is None
    assert row["due_after_ms"] <= 30_000
    assert server.rows("SELECT 1 FROM processes") == []


async def test_sighup_takes_the_new_certificate(world, net):
    server = world.server("renewing")
    old = await net.connect(server)
    number = served_certificate(server)
    renewed = world.authority.issue("renewed")
    server.certificate.key.write_bytes(renewed.key.read_bytes())
    server.certificate.cert.write_bytes(renewed.cert.read_bytes())
    os.kill(server.frontd.pid, signal.SIGHUP)
    await eventually(
        lambda: all(served_certificate(server) != number for _ in range(6)), "the new certificate"
    )
    assert await old.call("Ping", {"ts": 1}) == {"ts": 1}
    # A certificate that cannot be used is refused, and the one in use stays.
    server.expect("certificate|reload|tls")
    number = served_certificate(server)
    server.certificate.cert.write_text("this is no certificate")
    os.kill(server.frontd.pid, signal.SIGHUP)
    await eventually(lambda: "bad_certificate" in server.log.read_text(), "the complaint")
    assert served_certificate(server) == number
    assert await (await net.connect(server)).call("Ping", {"ts": 1}) == {"ts": 1}
    await net.close()
    assert server.stop()


def served_certificate(server):
    return ssl.get_server_certificate(("127.0.0.1", server.port))


async def test_a_client_that_does_not_read_is_let_go(alpha, net):
    """Its outgoing bytes are bounded; nobody else notices."""
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    c, reading = await net.session(alice), await net.session(carol)
    small = {"max_queue": 1, "read_limit": 4096, "ping_interval": None}
    stuck = await example_client.connect(alpha.url, str(alpha.cafile), **small)
    await stuck.create_session(carol.login, carol.key)
    stuck._reader.cancel()  # from here on nothing is taken from its socket
    body = b"\x07" * 65000
    for _ in range(20):
        sends = [c.send_text(carol.login, body) for _ in range(12)]
        assert {a["deliveryState"] for a in await asyncio.gather(*sends)} == {"delivered"}
        if not connected(alpha, stuck.session_id):
            break
    await eventually(lambda: not connected(alpha, stuck.session_id), "the stuck session to go", 30)
    total = alpha.value(
        "SELECT last_pts FROM user_event_heads WHERE owner_login = %s", [carol.login]
    )
    await reading.wait_pts(total, timeout=60)
    assert reading.pts() == list(range(1, total + 1))
    assert all(len(unb64(e["blobB64"])) > 65000 for e in reading.events)
    stuck.ws.transfer_data_task.cancel()
    stuck.ws.transport.abort()
    await stuck.ws.close_connection_task


def connected(server, session_id):
    query = "SELECT connected_to FROM active_sessions WHERE session_id = %s"
    return server.value(query, [session_id])


async def test_one_more_sigterm_does_not_spoil_the_end(world):
    """Whoever stops it may ask again at any moment, until the process is gone."""
    server = world.server("asked_again", start=False)
    for _ in range(3):
        daemons = [server.start_deliveryd(), server.start_deliveryd()]
        await eventually(lambda: len(server.rows("SELECT 1 FROM processes")) == 2, "their rows")
        while any(d.returncode is None for d in daemons):
            for d in daemons:
                d.signal(signal.SIGTERM)
            await asyncio.sleep(0)
        assert [d.returncode for d in daemons] == [0, 0]
    assert server.stop()
