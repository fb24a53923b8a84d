"""Connections that take and give nothing: clients that never read, handshakes that never end,
garbage. Everybody else is served as before. SHINE_CHAOS=N (make chaos): five times as many."""

import asyncio
import os
import random
import re
import time

import pytest
from support.waiting import eventually

CHAOS = int(os.environ.get("SHINE_CHAOS", "1"))
MANY = 5 if CHAOS > 1 else 1


LIMIT = 3 * 65536  # what may wait for a client: events, and two answers


async def longest_send(client, users, over):
    """Sends between two users while the others suffer; the slowest, in seconds."""
    longest, n = 0.0, 0
    while n < 3 or not over.is_set():
        started = time.monotonic()
        await client.send_pair(*users[0].pair(users[1], str(n)))
        longest, n = max(longest, time.monotonic() - started), n + 1
        await asyncio.sleep(0.01)
    return longest


async def test_clients_that_never_read(world, net):
    """What waits for each stays within its bound; then it is closed with 1013."""
    server = world.server(
        "slow", ws__maxSendBufferBytes=65536, limits__maxAnswerBytes=65536, log__level="info"
    )
    alice, dave = await net.user("alice", server), await net.user("dave", server)
    watcher, sender = await net.session(dave), await net.connect(server)
    users = [await net.user("slow", server) for _ in range(MANY)]
    stalled = []
    for user in users:
        for _ in range(40 if CHAOS > 1 else 20):
            client = await net.session(user)
            client.ws.transport.pause_reading()
            stalled.append(client)
    over = asyncio.Event()
    latency = asyncio.create_task(longest_send(sender, (alice, dave), over))
    others = await net.connect(server)
    sent = 0
    while server.log.read_text().count("event=session_too_slow") < len(stalled):
        assert sent < 200, "they are not closed"
        await asyncio.gather(
            *(others.send_pair(*alice.pair(user, "x" * 60_000)) for user in users)
        )
        sent += 1
    over.set()
    assert await latency < 5
    queued = re.findall(r"event=session_too_slow.* queued=(\d+)", server.log.read_text())
    assert len(queued) == len(stalled) and max(map(int, queued)) <= LIMIT
    connected = "SELECT count(*) FROM active_sessions WHERE connected_to IS NOT NULL"
    await eventually(lambda: server.value(connected) == 1, "only the watcher connected", 30)
    for client in stalled:
        client.ws.transport.resume_reading()
    for client in stalled[::10]:
        # The reason reaches whoever reads on before the closing handshake is given up.
        assert (await client.wait_closed()).code in (1013, 1006)
    last = "SELECT last_pts FROM user_event_heads WHERE owner_login = %s"
    await watcher.wait_pts(server.value(last, [dave.login]))
    await net.close()
    server.stop()


async def half_open(server, count, first_bytes):
    """Connections that say `first_bytes` and then nothing."""
    connections = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(first_bytes)
        connections.append((reader, writer))
    return connections


async def all_closed(connections, timeout):
    async def ends(reader):
        try:
            while await reader.read(4096):
                pass
        except ConnectionError:
            pass

    await asyncio.wait_for(asyncio.gather(*(ends(r) for r, _ in connections)), timeout)
    for _, writer in connections:
        writer.close()


CLIENT_HELLO_BEGUN = bytes.fromhex("1603010200010001fc0303")


FIRST_BYTES = {"begun": CLIENT_HELLO_BEGUN, "silent": b""}


@pytest.mark.parametrize("begin", FIRST_BYTES if CHAOS > 1 else ["begun"])
async def test_half_open_handshakes(world, net, begin):
    server = world.server(
        "halfopen", ws__handshakeSeconds=3, limits__connectionsPerAddress=5000, log__level="info"
    )
    alice, dave = await net.user("alice", server), await net.user("dave", server)
    sender, over = await net.connect(server), asyncio.Event()
    latency = asyncio.create_task(longest_send(sender, (alice, dave), over))
    started = time.monotonic()
    connections = await half_open(server, 200 * MANY, FIRST_BYTES[begin])
    late = await net.connect(server)  # new ones are accepted meanwhile
    assert await late.call("Ping", {"ts": 1}) == {"ts": 1}
    await all_closed(connections, 30)
    assert time.monotonic() - started > 2
    over.set()
    assert await latency < 5
    assert await late.call("Ping", {"ts": 2}) == {"ts": 2}  # an open one has no such deadline
    await net.close()
    server.stop()


async def test_garbage_instead_of_tls(world, net):
    rng = random.Random("garbage")
    server = world.server("garbage", log__level="info")
    alice, dave = await net.user("alice", server), await net.user("dave", server)
    sender, over = await net.connect(server), asyncio.Event()
    latency = asyncio.create_task(longest_send(sender, (alice, dave), over))
    for n in range(60 * MANY):
        data = rng.randbytes(rng.randrange(6, 3000))
        if n % 3 == 0:
            data = CLIENT_HELLO_BEGUN + data
        if n % 3 == 1:
            data = b"GET /ws HTTP/1.1\r\n" + data
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(data)
        if n % 2:
            writer.transport.abort()  # a reset in the midst of it
        else:
            writer.write_eof()
            await all_closed([(reader, writer)], 20)
    over.set()
    assert await latency < 5
    await net.close()
    server.stop()
