"""Users of other servers: looked up at partners and at the server that writes for them."""

import asyncio
import itertools

import pytest
from nacl.signing import SigningKey
from example_client import ShineError, add_user_payload, b64, pair_payload, public_b64
from support.net import User
from support.peers import FalsePeer, SilentServer, hello_answer
from support.waiting import eventually

_numbers = itertools.count(1)


def partner(server, login, url):
    """Make `login` a partner of `server`."""
    server.shinectl("server", "add", login, "--url", url)


@pytest.fixture(scope="module")
def north(world):
    return world.server("north")


@pytest.fixture(scope="module")
def south(world):
    return world.server("south")


@pytest.fixture(scope="module")
def partners(north, south):
    """Two servers that know each other."""
    partner(north, "south", south.url)
    partner(south, "north", north.url)
    return north, south


@pytest.fixture
def lone(world):
    """A server of one test, without partners."""
    server = world.server(f"lone{next(_numbers)}")
    yield server
    assert server.stop()


def record(user, *servers, **rest):
    return {
        "payload": {
            "exists": True,
            "login": user.login,
            "clientKey": public_b64(user.key),
            "accessServers": [{"serverLogin": s, "url": u} for s, u in servers or user.homes],
            **rest,
        }
    }


def stranger(name, *homes):
    return User(f"{name}_x{next(_numbers)}", list(homes))


def known(server, login):
    """What stands in the table: (source, servers), or None."""
    rows = server.rows("SELECT source, servers, client_key FROM v_users WHERE login = %s", [login])
    return rows[0] if rows else None


async def answer_of(client, op, payload):
    answer = await client.start(op, payload)
    return answer.status, answer.error


# ---- two servers that know each other ----


async def test_first_message_between_strangers(partners, net):
    north, south = partners
    alice, bob = await net.user("alice", north), await net.user("bob", south)
    at_alice, at_bob = await net.session(alice), await net.session(bob)
    assert known(north, bob.login) is None and known(south, alice.login) is None
    pair = alice.pair(bob, "do you know me?")
    assert (await at_alice.send_pair(*pair))["deliveryState"] == "delivered"
    assert (await at_bob.wait_event("IncomingDirectMessage"))["fromLogin"] == alice.login
    for server, user, home in ((north, bob, south), (south, alice, north)):
        row = known(server, user.login)
        assert row["source"] == "partner" and row["client_key"] == public_b64(user.key)
        assert row["servers"] == f"{home.login} {home.url}"
    keys = north.rows("SELECT client_key FROM user_keys WHERE login = %s", [bob.login])
    assert [r["client_key"] for r in keys] == [public_b64(bob.key)]


async def test_unknown_everywhere(partners, net):
    north, _ = partners
    alice = await net.user("alice", north)
    c = await net.connect(north)
    payload = pair_payload(*alice.pair(stranger("nobody")))
    assert await answer_of(c, "SendMessagePair", payload) == (404, "USER_NOT_FOUND")


async def test_get_user_looks_up_for_sessions_only(partners, net):
    north, south = partners
    alice, bob = await net.user("alice", north), await net.user("bob", south)
    anybody, session = await net.connect(north), await net.session(alice)
    ask = {"login": bob.login, "lookup": True}
    assert await anybody.call("GetUser", ask) == {"exists": False}
    assert await session.call("GetUser", {"login": bob.login}) == {"exists": False}
    await anybody.call("ServerHello", {"serverLogin": "south", "protocolVersion": 1})
    assert await anybody.call("GetUser", ask) == {"exists": False}  # servers make no loops
    assert known(north, bob.login) is None
    user = await session.call("GetUser", ask)
    assert user["exists"] and user["clientKey"] == public_b64(bob.key)
    assert user["accessServers"] == [{"serverLogin": "south", "url": south.url}]
    assert user["source"] == "partner"
    nobody = {"login": stranger("nobody").login, "lookup": True}
    assert await session.call("GetUser", nobody) == {"exists": False}
    assert await answer_of(session, "GetUser", {**ask, "lookup": 1}) == (400, "BAD_FIELDS")


async def test_add_user_asks_the_partners(partners, net):
    north, south = partners
    bob = await net.user("bob", south)
    c = await net.connect(north)
    other = add_user_payload(bob.login, SigningKey.generate(), [("north", north.url)])
    assert await answer_of(c, "AddUser", other) == (409, "USER_ALREADY_EXISTS")
    # The same user may come here, and is a local one from then on.
    assert await c.add_user(bob.login, bob.key, [("north", north.url)]) == {}
    row = known(north, bob.login)
    assert (row["source"], row["servers"]) == ("local", f"north {north.url}")
    assert await answer_of(c, "AddUser", other) == (409, "USER_ALREADY_EXISTS")
    # And what is local stays, whatever the others say of it.
    alice = await net.user("alice", north)
    assert (await (await net.session(alice)).send_text(bob.login, "x"))["deliveryState"] == "delivered"
    assert known(north, bob.login) == row


async def test_a_recipient_who_has_moved(world, partners, net):
    """The sender's routes are old: 403, one look-up, and the new server gets it at once."""
    north, south = partners
    east = world.server("east")
    partner(east, "north", north.url)
    alice, bob = await net.user("alice", north), await net.user("bob", south)
    a = await net.session(alice)
    assert (await a.send_text(bob.login, "one"))["deliveryState"] == "delivered"
    # bob moves: his old server is told where to, the new one knows him.
    await net.enter(User(bob.login, [("east", east.url)], bob.key), east)
    south.shinectl("user", "set-servers", bob.login, "--access", f"east={east.url}")
    sent = await a.send_text(bob.login, "two")
    assert sent["deliveryState"] == "delivered"
    row = north.delivery(sent["outgoingKey"])
    assert row["delivered_via"] == "east" and row["attempt_no"] == 1
    assert known(north, bob.login)["servers"] == f"east {east.url}"
    assert east.rows("SELECT 1 FROM signed_messages WHERE message_key = %s", [sent["incomingKey"]])
    await net.close()
    assert east.stop()


# ---- partners that are away, lie, or are asked too much ----


async def test_a_partner_that_is_down(world, lone, net):
    away = world.server("away")
    partner(lone, "away", away.url)
    alice = await net.user("alice", lone)
    bob = await net.user("bob", away)
    await net.close()
    assert away.stop()
    c = await net.connect(lone)
    payload = pair_payload(*alice.pair(bob))
    answer = await c.start("SendMessagePair", payload)
    assert (answer.status, answer.error) == (503, "DIRECTORY_UNAVAILABLE")
    assert answer.payload["retryAfterMs"] > 0
    new = add_user_payload(stranger("new").login, SigningKey.generate(), alice.homes)
    assert await answer_of(c, "AddUser", new) == (503, "DIRECTORY_UNAVAILABLE")
    # Who is known already is not concerned.
    assert (await c.send_pair(*alice.pair(alice)))["deliveryState"] == "delivered"
    assert await c.add_user(alice.login, alice.key, alice.homes) == {}
    away.start().ready()

    async def sent():
        return (await c.start("SendMessagePair", payload)).status == 200

    await eventually(sent, "the partner to be asked again", 40)
    await net.close()
    assert away.stop()


async def test_one_partner_says_no_and_another_is_silent(lone, net):
    async def knows_nobody(request):
        if request["op"] == "ServerHello":
            return hello_answer("gamma")
        return {"payload": {"exists": False}}

    async with FalsePeer("gamma", lone.certificate, knows_nobody) as gamma:
        alice = await net.user("alice", lone)
        c = await net.connect(lone)
        partner(lone, "gamma", gamma.url)
        payload = pair_payload(*alice.pair(stranger("bob")))
        assert await answer_of(c, "SendMessagePair", payload) == (404, "USER_NOT_FOUND")
        partner(lone, "delta", "wss://127.0.0.1:9/ws")
        payload = pair_payload(*alice.pair(stranger("bob")))
        assert await answer_of(c, "SendMessagePair", payload) == (503, "DIRECTORY_UNAVAILABLE")


async def test_any_partner_will_do(lone, net):
    bob = stranger("bob", ("gamma", "wss://gamma.example/ws"))

    async def knows(request):
        if request["op"] == "ServerHello":
            return hello_answer("gamma")
        return record(bob) if request["op"] == "GetUser" else {}

    async with SilentServer() as silent, FalsePeer("gamma", lone.certificate, knows) as gamma:
        alice = await net.user("alice", lone)
        partner(lone, "delta", silent.url)
        partner(lone, "gamma", gamma.url)
        session = await net.session(alice)
        user = await session.call("GetUser", {"login": bob.login, "lookup": True}, timeout=4)
        assert user["clientKey"] == public_b64(bob.key)
        requests = [r for r in gamma.requests if r["op"] == "GetUser"]
        assert [r["payload"] for r in requests] == [{"login": bob.login}], "no lookup: no loops"


async def test_garbage_is_no_storm(lone, net):
    async def knows_nobody(request):
        if request["op"] == "ServerHello":
            return hello_answer("gamma", "pipelining")
        return {"payload": {"exists": False}}

    async with FalsePeer("gamma", lone.certificate, knows_nobody) as gamma:
        partner(lone, "gamma", gamma.url)
        bob = stranger("bob")
        c = await net.connect(lone)

        async def flood(authors):
            pending = [
                c.start("SendMessagePair", pair_payload(*author.pair(bob))) for author in authors
            ]
            return [(a.status, a.error) for a in await asyncio.gather(*pending)]

        # One login, many times: asked once, and not again for a while.
        one = stranger("garbage")
        assert set(await flood([one] * 50)) == {(404, "USER_NOT_FOUND")}
        assert set(await flood([one] * 50)) == {(404, "USER_NOT_FOUND")}
        assert gamma.ops().count("GetUser") == 1
        # Many logins: bounded, and whoever exceeds the bound is told to come again.
        got = await flood([stranger("garbage") for _ in range(600)])
        assert set(got) <= {(404, "USER_NOT_FOUND"), (503, "DIRECTORY_UNAVAILABLE")}
        assert (503, "DIRECTORY_UNAVAILABLE") in got
        assert gamma.ops().count("GetUser") < 300
        # A forger makes us look nobody up.
        alice = await net.user("alice", lone)
        asked = gamma.ops().count("GetUser")
        forger = User(alice.login, [])
        payload = pair_payload(*forger.pair(stranger("victim")))
        assert await answer_of(c, "SendMessagePair", payload) == (422, "BAD_SIGNATURE")
        assert gamma.ops().count("GetUser") == asked


async def test_records_that_are_none(lone, net):
    bob = stranger("bob", ("gamma", "wss://gamma.example/ws"))
    good = record(bob)["payload"]
    bad = [
        {**good, "login": "somebody_else"},
        {**good, "clientKey": b64(b"short")},
        {**good, "accessServers": []},
        {**good, "accessServers": good["accessServers"] * 2},
        {**good, "accessServers": [{"serverLogin": "UPPER", "url": "wss://gamma.example/ws"}]},
        {**good, "accessServers": [{"serverLogin": "gamma", "url": "http://gamma.example/"}]},
        {"exists": 1},
        {},
    ]
    answers = iter(bad)

    async def handler(request):
        return hello_answer("gamma") if request["op"] == "ServerHello" else {"payload": next(answers)}

    async with FalsePeer("gamma", lone.certificate, handler) as gamma:
        alice = await net.user("alice", lone)
        partner(lone, "gamma", gamma.url)
        session = await net.session(alice)
        for n in range(len(bad)):

            async def asked(n=n):
                ask = {"login": bob.login, "lookup": True}
                got = await answer_of(session, "GetUser", ask)
                assert got == (503, "DIRECTORY_UNAVAILABLE")
                return gamma.ops().count("GetUser") > n

            await eventually(asked, "the next bad record to be asked for")
        assert known(lone, bob.login) is None


# ---- keys ----


async def test_the_first_key_stays(world, net):
    server = world.server(f"keys{next(_numbers)}", directory__ttlSeconds=1)
    bob = stranger("bob", ("gamma", "wss://gamma.example/ws"))
    impostor = User(bob.login, bob.homes)
    says = [bob]

    async def handler(request):
        return hello_answer("gamma") if request["op"] == "ServerHello" else record(says[0])

    async with FalsePeer("gamma", server.certificate, handler) as gamma:
        alice = await net.user("alice", server)
        partner(server, "gamma", gamma.url)
        session = await net.session(alice)
        ask = {"login": bob.login, "lookup": True}
        assert (await session.call("GetUser", ask))["clientKey"] == public_b64(bob.key)
        says[0] = impostor

        async def noticed():  # a record that is used is confirmed in the background
            assert (await session.call("GetUser", ask))["clientKey"] == public_b64(bob.key)
            query = "SELECT other_key, other_key_from FROM v_users WHERE login = %s"
            (row,) = server.rows(query, [bob.login])
            return row["other_key"] == public_b64(impostor.key) and row["other_key_from"] == "gamma"

        await eventually(noticed, "the other key to be shown", 30)
        assert "event=user_key_differs" in server.log.read_text()
    await net.close()
    assert server.stop()


async def test_a_partner_replaces_the_word_of_the_sender(lone, net):
    """delta is no partner. What it says of its user holds until gamma, which is, says otherwise."""
    carol = stranger("carol")
    false_carol = User(carol.login, [])

    async def delta_says(request):
        if request["op"] == "ServerHello":
            return hello_answer("delta")
        return record(false_carol, ("delta", delta.url))

    async def gamma_says(request):
        if request["op"] == "ServerHello":
            return hello_answer("gamma")
        return record(carol, ("gamma", gamma.url), source="local")

    async with FalsePeer("delta", lone.certificate, delta_says) as delta:
        async with FalsePeer("gamma", lone.certificate, gamma_says) as gamma:
            alice = await net.user("alice", lone)
            # Where delta is: a user says so.
            await net.user("dan", known_to=(lone,), urls=[("delta", delta.url)])
            c = await net.connect(lone)
            incoming = {"incomingBlobB64": b64(false_carol.pair(alice)[0])}
            refused = await answer_of(c, "ReceiveIncomingMessage", incoming)
            assert refused == (404, "USER_NOT_FOUND") and delta.ops() == []
            await c.call("ServerHello", {"serverLogin": "delta", "protocolVersion": 1})
            await c.call("ReceiveIncomingMessage", incoming)
            assert known(lone, carol.login)["source"] == "provisional"
            # The true carol writes: before that is called forged, a partner is asked.
            partner(lone, "gamma", gamma.url)
            await c.call("ReceiveIncomingMessage", {"incomingBlobB64": b64(carol.pair(alice)[0])})
            row = known(lone, carol.login)
            assert row["source"] == "partner" and row["client_key"] == public_b64(carol.key)
            assert row["servers"] == f"gamma {gamma.url}"
            again = {"incomingBlobB64": b64(false_carol.pair(alice)[0])}
            assert await answer_of(c, "ReceiveIncomingMessage", again) == (422, "BAD_SIGNATURE")


async def test_a_sender_speaks_for_its_own_users_only(lone, net):
    carol = stranger("carol", ("gamma", "wss://gamma.example/ws"))

    async def says(request):
        return hello_answer("delta") if request["op"] == "ServerHello" else record(carol)

    async with FalsePeer("delta", lone.certificate, says) as delta:
        alice = await net.user("alice", lone)
        await net.user("dan", known_to=(lone,), urls=[("delta", delta.url)])
        c = await net.connect(lone)
        await c.call("ServerHello", {"serverLogin": "delta", "protocolVersion": 1})
        incoming = {"incomingBlobB64": b64(carol.pair(alice)[0])}
        refused = await answer_of(c, "ReceiveIncomingMessage", incoming)
        assert refused == (404, "USER_NOT_FOUND")
        assert delta.ops() == ["ServerHello", "GetUser"] and known(lone, carol.login) is None


async def test_import_can_be_switched_off(world, net):
    server = world.server("closed2", **{"sync__importUserProfileFromPartner__enabled": "off"})

    async def handler(request):
        return hello_answer("gamma")

    async with FalsePeer("gamma", server.certificate, handler) as gamma:
        partner(server, "gamma", gamma.url)
        alice = await net.user("alice", server)
        c = await net.connect(server)
        payload = pair_payload(*alice.pair(stranger("bob")))
        assert await answer_of(c, "SendMessagePair", payload) == (404, "USER_NOT_FOUND")
        assert gamma.connections == 0
    await net.close()
    assert server.stop()
