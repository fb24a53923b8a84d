"""Who asks too much is told to come again, and nothing else happens."""

import asyncio

import pytest
from example_client import add_user_payload, pair_payload
from nacl.signing import SigningKey
from support.refusals import content
from support.server_auth import add_partner, prove

GAMMA = SigningKey(bytes([1]) * 32)


@pytest.fixture(scope="module")
def limited(world):
    """So slow that a test sees the bursts alone; one worker, since each counts by itself."""
    server = world.server(
        "limited",
        start=False,
        frontd__workers=1,
        limits__requestsPerLogin=1,
        limits__requestsPerLoginBurst=30,
        limits__sendsPerAddress=1,
        limits__sendsPerAddressBurst=20,
        sync__importUserProfileFromPartner__enabled="off",
    )
    add_partner(server, "gamma", GAMMA)
    return server.start().ready()


def refusals(answers):
    """How many were refused, each as it must be."""
    refused = [a for a in answers if not a.ok]
    for a in refused:
        assert (a.status, a.error) == (429, "RATE_LIMITED")
        assert 1 <= a.payload["retryAfterMs"] <= 60_000
    return len(refused)


async def many(client, op, payloads):
    return await asyncio.gather(*[client.start(op, p) for p in payloads])


async def test_sends_without_log_in_count_by_address(limited, net):
    alice, bob = await net.user("alice", limited), await net.user("bob", limited)
    a, b = await net.connect(limited), await net.connect(limited)
    pairs = [pair_payload(*alice.pair(bob, str(n))) for n in range(60)]
    answers = await many(a, "SendMessagePair", pairs[:30]) + await many(
        b, "SendMessagePair", pairs[30:]
    )
    passed = 60 - refusals(answers)
    assert 20 <= passed <= 30  # the burst, and what came back meanwhile on a slow machine
    stored = limited.value("SELECT count(*) FROM signed_messages WHERE owner_login = %s", [bob.login])
    assert stored == passed
    # Other requests go on, and so do users who are logged in and servers that are known.
    assert await a.call("Ping", {"ts": 1}) == {"ts": 1}
    session = await net.session(alice)
    assert (await session.send_text(bob.login, "logged in"))["deliveryState"] == "delivered"
    await prove(a, limited, "gamma", GAMMA)
    assert refusals(await many(a, "ReceiveOutcomingMessage", pairs)) == 0
    # Whoever only says so is anybody.
    await b.call("ServerHello", {"serverLogin": "gamma", "protocolVersion": 1})
    before = content(limited)
    assert refusals(await many(b, "ReceiveOutcomingMessage", pairs[:40])) > 20
    assert content(limited) == before  # they had all been stored already


async def test_requests_of_a_user_count_on_all_connections(limited, net):
    carol = await net.user("carol", limited)
    one, two = await net.session(carol), await net.session(carol)
    answers = await many(one, "ListSessions", [{}] * 30) + await many(two, "Ping", [{}] * 30)
    assert 20 <= refusals(answers) <= 30
    other = await net.session(await net.user("dave", limited))
    assert refusals(await many(other, "Ping", [{}] * 20)) == 0


async def test_users_are_added_slowly_and_hellos_are_few(world, net):
    server = world.server(
        "slow", frontd__workers=1, limits__addUsersPerAddress=1, limits__hellosPerAddress=1
    )
    c = await net.connect(server)
    hello = {"serverLogin": "gamma", "protocolVersion": 1}
    assert 20 <= refusals(await many(c, "ServerHello", [hello] * 130)) <= 30
    users = [
        add_user_payload(f"u{n}", SigningKey.generate(), [(server.login, server.url)])
        for n in range(15)
    ]
    assert refusals(await many(c, "AddUser", users)) == 5
    assert server.value("SELECT count(*) FROM users") == 10
    await net.close()
    assert server.stop()
