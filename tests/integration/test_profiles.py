"""Signed profiles: a user says which servers are theirs, and every server comes to know."""

import itertools

import pytest
from example_client import (
    add_user_payload,
    b64,
    enc_key_fields,
    now_ms,
    pair_payload,
    profile_payload,
    public_b64,
    sign_text,
    unb64,
)
from nacl.signing import SigningKey
from support.net import User
from support.peers import FalsePeer, hello_answer
from support.waiting import eventually

_numbers = itertools.count(1)
OK = (200, "")


def here(*servers):
    return [(s.login, s.url) for s in servers]


def profile_of(user, servers, *args, **kwargs):
    return profile_payload(user.login, user.key, servers, *args, **kwargs)


def known(server, user):
    """What stands in the table: (source, servers, time of the profile or None); None = nobody."""
    rows = server.rows(
        "SELECT source, servers, time_ms FROM v_users LEFT JOIN user_profiles USING (login)"
        " WHERE login = %s",
        [user.login],
    )
    return tuple(rows[0].values()) if rows else None


def is_served_by(server, user, *others):
    """True if `server` has the profile that names `others`."""
    row = known(server, user)
    return row and row[2] and row[1] == ", ".join(f"{s.login} {s.url}" for s in others)


async def answer_of(client, op, payload):
    answer = await client.start(op, payload)
    return answer.status, answer.error


async def publish(net, server, payload):
    return await answer_of(await net.connect(server), "UpsertUserProfile", payload)


def befriend(*servers):
    for a in servers:
        for b in servers:
            if a is not b:
                a.shinectl("server", "add", b.login, "--url", b.url)


@pytest.fixture(scope="module")
def three(world):
    """Three servers that know each other."""
    servers = [world.server(name) for name in ("north", "south", "east")]
    befriend(*servers)
    return servers


@pytest.fixture
def lone(world):
    """A server of one test, without partners."""
    server = world.server(f"lone{next(_numbers)}")
    yield server
    assert server.stop()


# ---- a user who moves ----


async def test_a_user_moves(three, net):
    north, south, east = three
    alice, bob = await net.user("alice", north), await net.user("bob", south)
    a = await net.session(alice)
    assert (await a.send_text(bob.login, "one"))["deliveryState"] == "delivered"
    assert known(north, bob) == ("partner", f"south {south.url}", None)
    assert known(east, bob) is None

    # Published at the old server. The new one has never heard of bob, and asks.
    profile = profile_of(bob, here(east))
    assert await publish(net, south, profile) == OK
    assert known(south, bob) == ("profile", f"east {east.url}", profile["timeMs"])
    await eventually(lambda: is_served_by(east, bob, east), "the new server to hear of it")
    at_east = await net.session(bob, east)

    # North still has the old record: 403, one look-up, and the message is there.
    assert known(north, bob)[1:] == (f"south {south.url}", None)
    sent = await a.send_text(bob.login, "two")
    assert sent["deliveryState"] == "delivered"
    row = north.delivery(sent["outgoingKey"])
    assert (row["delivered_via"], row["attempt_no"], row["route_hint"]) == ("east", 1, "east")
    event = await at_east.wait_event("IncomingDirectMessage")
    assert event["messageKey"] == sent["incomingKey"]
    assert known(north, bob) == ("partner", f"east {east.url}", profile["timeMs"])

    # The old server takes nothing more, and sends its own users' messages to the new one.
    c = await net.connect(south)
    incoming = {"incomingBlobB64": b64(alice.pair(bob, "three")[0])}
    refused = (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")
    assert await answer_of(c, "ReceiveIncomingMessage", incoming) == refused
    assert await answer_of(c, "SendMessagePair", pair_payload(*bob.pair(alice))) == refused
    carol = await net.user("carol", south)
    sent = await (await net.session(carol)).send_text(bob.login, "four")
    assert sent["deliveryState"] == "delivered"
    assert (await at_east.wait_event("IncomingDirectMessage"))["messageKey"] == sent["incomingKey"]

    # Every server tells the profile as it was signed.
    for server in three:
        user = await (await net.connect(server)).call("GetUser", {"login": bob.login})
        assert user["profile"] == profile
        assert user["accessServers"] == profile["accessServers"]


async def test_old_and_new_servers_are_told(three, net):
    north, south, east = three
    bob = await net.user("bob", south)
    # At a server that is neither: it looks bob up, and passes it on to both.
    first = profile_of(bob, here(south, north))
    assert await publish(net, east, first) == OK
    for server in three:
        await eventually(lambda s=server: is_served_by(s, bob, south, north), server.login)
    second = profile_of(bob, here(east, north), first["timeMs"] + 1)
    assert await publish(net, north, second) == OK
    for server in three:
        await eventually(lambda s=server: is_served_by(s, bob, east, north), server.login)
    # Who has a new second server owes it everything; the order of servers is no change.
    owed = (
        "SELECT server_login FROM sync_leases WHERE owner_login = %s AND mark_from = '' ORDER BY 1"
    )
    got = [r["server_login"] for r in north.rows(owed, [bob.login])]
    assert got == ["east", "south"]
    assert [r["server_login"] for r in east.rows(owed, [bob.login])] == ["north"]


async def test_waiting_rows_follow(three, net):
    north, south, east = three
    alice = await net.user("alice", north)
    away = ("away", "wss://127.0.0.1:9/ws")
    bob = await net.user("bob", known_to=(north, east), urls=[away])
    sent = await (await net.session(alice)).send_text(bob.login, "where are you?")
    assert sent["deliveryState"] == "accepted"
    assert north.delivery(sent["outgoingKey"])["route_hint"] == "away"
    assert await publish(net, north, profile_of(bob, here(south, east))) == OK
    row = north.delivery(sent["outgoingKey"])
    assert (row["state"], row["route_hint"]) == ("accepted", "south")


async def test_no_loops(world, lone, net):
    """Two servers that pass on whatever they get would never end."""
    async with FalsePeer("gamma", lone.certificate, _hello_or_ok("gamma")) as gamma:
        async with FalsePeer("delta", lone.certificate, _hello_or_ok("delta")) as delta:
            bob = await net.user("bob", lone, urls=[("gamma", gamma.url)])
            profile = profile_of(bob, [("delta", delta.url), ("gamma", gamma.url)])
            for _ in range(3):
                assert await publish(net, lone, profile) == OK

            async def told():
                return "UpsertUserProfile" in gamma.ops() and "UpsertUserProfile" in delta.ops()

            await eventually(told, "both servers to be told")
            older = profile_of(bob, here(lone), profile["timeMs"] - 1)
            assert await publish(net, lone, older) == OK
            for peer in (gamma, delta):
                got = [r for r in peer.requests if r["op"] == "UpsertUserProfile"]
                assert [r["payload"] for r in got] == [profile]


def _hello_or_ok(login):
    async def handler(request):
        return hello_answer(login) if request["op"] == "ServerHello" else {}

    return handler


# ---- who hears of it ----


async def test_other_workers_forget_what_they_remember(world, lone, net):
    """Both workers remember which servers are bob's: these may do what clients may not."""
    bob, other = await net.user("bob", lone), await net.user("other", lone)
    workers = await net.spread_sessions(other, lone)

    async def taken(client):
        stamps = {"time_ms": now_ms(), "nonce": next(_numbers)}
        _, outgoing = bob.pair(other, **stamps)
        edited, _ = bob.pair(other, **stamps, revision=now_ms())
        payload = {**pair_payload(edited, outgoing), "sourceServerLogin": "extra"}
        got = await answer_of(client, "SendMessagePair", payload)
        assert got[1] in ("", "PAIR_MISMATCH")
        return not got[1]

    async def all_say(yes):
        return all([await taken(w) == yes for w in workers])

    assert await all_say(False)
    two = [*here(lone), ("extra", "wss://127.0.0.1:9/ws")]
    profile = profile_of(bob, two)
    assert await answer_of(workers[0], "UpsertUserProfile", profile) == OK
    assert await taken(workers[0]), "this worker knows at once"
    await eventually(lambda: all_say(True), "the other worker to forget")
    lone.shinectl("user", "set-servers", bob.login, "--access", f"{lone.login}={lone.url}")
    await eventually(lambda: all_say(False), "both to hear of it from shinectl")


async def test_a_server_that_was_not_told_finds_out(world, net):
    """The old server is down when the user moves; it compares its old records with others'."""
    south = world.server("south2", directory__ttlSeconds=1)
    east = world.server("east2")
    befriend(south, east)
    bob = await net.user("bob", south)
    alice = await net.user("alice", east)
    at_alice = await net.session(alice)
    assert (await at_alice.send_text(bob.login, "hi"))["deliveryState"] == "delivered"
    await net.close()
    assert south.stop()
    profile = profile_of(bob, here(east))
    assert await publish(net, east, profile) == OK
    await eventually(lambda: "event=profile_not_passed_on" in east.log.read_text(), "the failure")
    south.start().ready()
    assert known(south, bob) == ("local", f"south2 {south.url}", None)
    c = await net.connect(south)

    async def refused():
        got = await answer_of(c, "SendMessagePair", pair_payload(*bob.pair(bob)))
        return got == (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")

    await eventually(refused, "the old server to find out", 30)
    assert known(south, bob) == ("profile", f"east2 {east.url}", profile["timeMs"])
    await net.close()
    assert south.stop() and east.stop()


# ---- what other servers say ----


async def test_a_partner_cannot_forge(world, net):
    server = world.server(f"wary{next(_numbers)}", directory__ttlSeconds=1)
    gamma_home = [("gamma", "wss://gamma.example/ws")]
    bob = User(f"bob_{next(_numbers)}", gamma_home)
    forger = User(bob.login, [("evil", "wss://evil.example/ws")])
    true = profile_of(bob, gamma_home)

    def record(key, servers, profile):
        return {
            "payload": {
                "exists": True,
                "login": bob.login,
                "clientKey": public_b64(key),
                "accessServers": [{"serverLogin": s, "url": u} for s, u in servers],
                "profile": profile,
            }
        }

    says = [record(bob.key, gamma_home, true)]

    async def handler(request):
        if request["op"] == "ServerHello":
            return hello_answer("gamma")
        if request["payload"].get("login") != bob.login:
            return {"payload": {"exists": False}}
        return says[0]

    async with FalsePeer("gamma", server.certificate, handler) as gamma:
        alice = await net.user("alice", server)
        server.shinectl("server", "add", "gamma", "--url", gamma.url)
        session = await net.session(alice)
        ask = {"login": bob.login, "lookup": True}

        async def has_been_asked_again():
            n = gamma.ops().count("GetUser")

            async def asked():
                await session.call("GetUser", ask)
                return gamma.ops().count("GetUser") > n + 1

            await eventually(asked, "the record to be confirmed", 40)
            return await session.call("GetUser", ask)

        assert (await session.call("GetUser", ask))["profile"] == true
        forged = profile_of(forger, forger.homes, true["timeMs"] + 5)
        lies = [
            # the true key, the false servers: unsigned, or with somebody else's signature
            record(bob.key, forger.homes, None),
            record(bob.key, forger.homes, {**forged, "clientKey": public_b64(bob.key)}),
            record(bob.key, forger.homes, forged),
            # a false key that signs whatever it likes
            record(forger.key, forger.homes, forged),
        ]
        for lie in lies:
            says[0] = lie
            got = await has_been_asked_again()
            assert got["profile"] == true and got["clientKey"] == public_b64(bob.key)
            assert got["accessServers"] == true["accessServers"]
        log = server.log.read_text()
        assert "event=bad_user_profile" in log and "event=user_key_differs" in log
        query = "SELECT other_key, other_key_from FROM v_users WHERE login = %s"
        (row,) = server.rows(query, [bob.login])
        assert list(row.values()) == [public_b64(forger.key), "gamma"]
        # What bob has signed is true whoever tells it.
        newer = profile_of(bob, [("delta", "wss://delta.example/ws")], true["timeMs"] + 1)
        says[0] = record(bob.key, forger.homes, newer)
        assert (await has_been_asked_again())["profile"] == newer
    await net.close()
    assert server.stop()


async def test_earlier_keys_hold_for_replication(lone, net):
    """What a second server brings may be from before the operator took carol's new key."""
    alice = await net.user("alice", lone)
    gamma = ("gamma", "wss://gamma.example/ws")
    carol = await net.user("carol", known_to=(lone,), urls=[gamma])
    new = User(carol.login, carol.homes)
    noted = "UPDATE users SET other_key = %s WHERE login = %s"
    lone.rows(noted, [public_b64(new.key), carol.login])
    assert lone.value("SELECT settle_user_key(%s, true)", [carol.login])
    for said, old in (("gamma", OK), ("delta", (422, "BAD_SIGNATURE"))):
        c = await net.connect(lone)
        await c.call("ServerHello", {"serverLogin": said, "protocolVersion": 1})
        new_copy, old_copy = ({"incomingBlobB64": b64(u.pair(alice)[0])} for u in (new, carol))
        assert await answer_of(c, "ReceiveIncomingMessage", new_copy) == OK

        async def answered(c=c, old_copy=old_copy, old=old):
            return await answer_of(c, "ReceiveIncomingMessage", old_copy) == old

        # A worker that has just started believes nobody for a moment.
        await eventually(answered, f"what {said} brings")


async def test_strangers_make_nobody_served_here(lone, net):
    """delta is no partner: the key of its user is its word alone."""
    carol = User(f"carol_{next(_numbers)}", [])

    async def says(request):
        if request["op"] == "ServerHello":
            return hello_answer("delta")
        return {
            "payload": {
                "exists": True,
                "login": carol.login,
                "clientKey": public_b64(carol.key),
                "accessServers": [{"serverLogin": "delta", "url": delta.url}],
            }
        }

    async with FalsePeer("delta", lone.certificate, says) as delta:
        await net.user("dan", known_to=(lone,), urls=[("delta", delta.url)])
        c = await net.connect(lone)
        await c.call("ServerHello", {"serverLogin": "delta", "protocolVersion": 1})
        moving = profile_of(carol, here(lone))
        refused = (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")
        assert await answer_of(c, "UpsertUserProfile", moving) == refused
        assert known(lone, carol) == ("provisional", f"delta {delta.url}", None)
        assert await answer_of(c, "UpsertUserProfile", profile_of(carol, [("x", delta.url)])) == OK
        assert known(lone, carol)[:2] == ("provisional", f"x {delta.url}")


# ---- what is refused, and what is ignored ----


async def test_refusals(lone, net):
    bob = await net.user("bob", lone)
    other = SigningKey.generate()
    where = here(lone)
    good = profile_of(bob, where)
    bad = {**good, "timeMs": good["timeMs"] + 1}
    assert await publish(net, lone, bad) == (422, "BAD_SIGNATURE")
    elsewhere = {**good, "accessServers": [{"serverLogin": "x", "url": "wss://x.example/ws"}]}
    assert await publish(net, lone, elsewhere) == (422, "BAD_SIGNATURE")
    forged = profile_payload(bob.login, other, where)
    assert await publish(net, lone, forged) == (422, "CLIENT_KEY_NOT_ACTUAL")
    assert lone.value("SELECT other_key FROM v_users WHERE login = %s", [bob.login]) is None
    early = profile_of(bob, where, now_ms() + 15 * 60_000 + 30_000)
    assert await publish(net, lone, early) == (400, "TIME_SKEW")
    just = profile_of(bob, where, now_ms() + 15 * 60_000 - 30_000)
    nobody = User(f"nobody_{next(_numbers)}", where)
    assert await publish(net, lone, profile_of(nobody, where)) == (404, "USER_NOT_FOUND")
    for url in ("ws://x.example/", "wss://x.example/a=b", "wss://x.example/a,b", "wss://é.example/"):
        assert await publish(net, lone, profile_of(bob, [("x", url)])) == (400, "BAD_FIELDS")
    assert await publish(net, lone, profile_of(bob, where * 2)) == (400, "BAD_FIELDS")
    three = [(name, "wss://x.example/ws") for name in "xyz"]
    assert await publish(net, lone, profile_of(bob, three)) == (400, "TOO_MANY_ACCESS_SERVERS")
    assert await publish(net, lone, {**good, "login": "UPPER"}) == (400, "BAD_LOGIN")
    assert await publish(net, lone, {**good, "clientKey": "short"}) == (400, "BAD_KEY_FORMAT")
    assert known(lone, bob) == ("local", f"{lone.login} {lone.url}", None)
    assert await publish(net, lone, just) == OK
    assert known(lone, bob)[2] == just["timeMs"]


async def test_who_cannot_be_asked_is_no_reason_to_say_no(lone, net):
    lone.shinectl("server", "add", "away", "--url", "wss://127.0.0.1:9/ws")
    nobody = User(f"nobody_{next(_numbers)}", here(lone))
    profile = profile_of(nobody, nobody.homes)
    assert await publish(net, lone, profile) == (503, "DIRECTORY_UNAVAILABLE")


async def test_the_newest_wins_and_ties_are_the_same_everywhere(three, net):
    north, south, _ = three
    bob = await net.user("bob", known_to=(north, south), urls=[("x", "wss://x.example/ws")])
    stamp = now_ms()
    one, two = (profile_of(bob, [(s, f"wss://{s}.example/ws")], stamp) for s in ("one", "two"))
    newest = profile_of(bob, [("three", "wss://three.example/ws")], stamp + 1)
    winner = max(one, two, key=lambda p: unb64(p["signatureB64"]))
    for server, order in ((north, (one, two)), (south, (two, one))):
        for profile in order:
            assert await publish(net, server, profile) == OK
        user = await (await net.connect(server)).call("GetUser", {"login": bob.login})
        assert user["profile"] == winner
    assert await publish(net, north, newest) == OK
    for older in (one, two):
        assert await publish(net, north, older) == OK  # acknowledged, and ignored
    user = await (await net.connect(north)).call("GetUser", {"login": bob.login})
    assert user["profile"] == newest


async def test_encryption_keys(lone, net):
    user = User(f"dora_{next(_numbers)}", here(lone))
    c = await net.connect(lone)
    first, second, third = (b64(bytes([n]) * 32) for n in (1, 2, 3))
    add = add_user_payload(user.login, user.key, user.homes)
    wrong = {**enc_key_fields(user.login, user.key, first), "encKey": second}
    assert await answer_of(c, "AddUser", {**add, **wrong}) == (422, "BAD_SIGNATURE")
    await c.call("AddUser", {**add, **enc_key_fields(user.login, user.key, first)})
    got = await c.call("GetUser", {"login": user.login})
    assert got["encKey"] == first and "profile" not in got
    profile = profile_of(user, user.homes, enc_key=second)
    wrong = {**profile, "encKey": third}
    assert await answer_of(c, "UpsertUserProfile", wrong) == (422, "BAD_SIGNATURE")
    wrong = {k: v for k, v in profile.items() if k != "encKeySigB64"}
    assert await answer_of(c, "UpsertUserProfile", wrong) == (400, "BAD_FIELDS")
    assert await answer_of(c, "UpsertUserProfile", profile) == OK
    got = await c.call("GetUser", {"login": user.login})
    assert got["profile"] == profile and got["encKey"] == second
    assert got["encKeySigB64"] == sign_text(user.key, f"SHiNE_ENC_KEY:{user.login}:{second}")
    bare = profile_of(user, user.homes, profile["timeMs"] + 1)
    assert await answer_of(c, "UpsertUserProfile", bare) == OK
    assert (await c.call("GetUser", {"login": user.login}))["encKey"] == second
