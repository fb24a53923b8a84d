"""How many requests are open on a connection to another server: one, unless both sides list
`pipelining`."""

import asyncio
import json
import time

import pytest
import websockets
from example_client import pair_payload
from support.delay_proxy import DelayProxy
from support.peers import FalsePeer, answer, hello_answer

ONE_WAY = 0.15  # seconds
MESSAGES = 192
IN_FLIGHT = 64


class CountingPeer(FalsePeer):
    """Works on requests side by side and counts how many it has at once. It answers none before it
    has had `expected` of them, and then a little later, so that more would be seen."""

    def __init__(self, login, certificate, hello, expected):
        super().__init__(login, certificate, hello)
        self.expected, self.enough = expected, asyncio.Event()
        self.open = self.most = 0

    async def _serve(self, ws):
        self.connections += 1
        tasks = []
        try:
            async for text in ws:
                tasks.append(asyncio.ensure_future(self._work(ws, json.loads(text))))
        except websockets.ConnectionClosed:
            pass
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, ws, request):
        self.requests.append(request)
        if request["op"] == "ServerHello":
            await ws.send(json.dumps(answer(request, **await self.handler(request))))
            return
        self.open += 1
        self.most = max(self.most, self.open)
        if self.most >= self.expected:
            self.enough.set()
        await asyncio.wait_for(self.enough.wait(), 30)
        await asyncio.sleep(0.02)
        self.open -= 1
        await ws.send(json.dumps(answer(request)))


@pytest.fixture(scope="module")
def sender(world):
    """One process, so that there is one connection; its clients wait for every first attempt."""
    return world.server("sender", frontd__workers=1, delivery__firstReplyBudgetMs=30000)


async def send_many(net, server, alice, bob, n):
    """n messages at once, from enough connections for all of them to be worked on."""
    clients = [await net.connect(server) for _ in range(-(-n // IN_FLIGHT))]
    pending = [
        clients[i // IN_FLIGHT].start("SendMessagePair", pair_payload(*alice.pair(bob, f"{i}")))
        for i in range(n)
    ]
    return [(await asyncio.wait_for(p, 90)).result() for p in pending]


async def test_many_deliveries_share_a_round_trip(world, sender, net):
    far = world.server("far", frontd__workers=1)
    async with DelayProxy(far.port, ONE_WAY) as proxy:
        alice = await net.user("alice", sender, known_to=(far,))
        bob = await net.user("bob", known_to=(sender, far), urls=[("far", proxy.url)])
        first = await (await net.connect(sender)).send_pair(*alice.pair(bob, "the way is open"))
        assert first["deliveryState"] == "delivered", sender.delivery(first["outgoingKey"])
        started = time.monotonic()
        sent = await send_many(net, sender, alice, bob, MESSAGES)
        round_trips = (time.monotonic() - started) / (2 * ONE_WAY)
        print(f"{MESSAGES} deliveries in {round_trips:.1f} round trips of {2 * ONE_WAY:.1f} s")
        assert {a["deliveryState"] for a in sent} == {"delivered"}
        assert proxy.connections == 1
        # One at a time it would be MESSAGES; with 64 in flight it is 3 and the work.
        assert round_trips < MESSAGES / 4
        query = "SELECT count(*) FROM signed_messages WHERE owner_login = %s"
        assert far.value(query, [bob.login]) == MESSAGES + 1
        await net.close()
        assert far.stop()


@pytest.mark.parametrize("kind", ["legacy", "without", "with"])
async def test_how_many_requests_are_open(sender, net, kind):
    async def hello(_):
        if kind == "legacy":
            return {"status": 400, "error": "UNKNOWN_OP"}
        return hello_answer(f"{kind}-list", *(["pipelining"] if kind == "with" else []))

    # Of 64 places each of the two lower lanes keeps one.
    n, most = (96, IN_FLIGHT - 2) if kind == "with" else (12, 1)
    async with CountingPeer(f"{kind}-list", sender.certificate, hello, most) as peer:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[(peer.login, peer.url)])
        sent = await send_many(net, sender, alice, bob, n)
        assert {a["deliveryState"] for a in sent} == {"delivered"}
        assert peer.connections == 1 and len(peer.requests) == n + 1
        assert most <= peer.most <= (IN_FLIGHT if kind == "with" else 1)
