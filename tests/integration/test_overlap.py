"""Users whose access servers overlap: the recipient's are the sender's own, or one of them is;
notes to oneself; and what a user's second server brings.

What reaches a server that serves the recipient has arrived: the row is born delivered and nobody is
called. `gamma` and `delta` are servers that would notice."""

import asyncio
import contextlib

import psycopg2
import pytest
import shine_dm as dm
from example_client import b64, pair_payload
from support import fake_server as fake
from support.fake_server import FakeServer
from support.waiting import eventually

LEASE_MS = 30_000
OURS = "alpha"


class Others:
    """gamma and delta, and users at home on them and on alpha."""

    def __init__(self, alpha, net):
        self.alpha, self.net = alpha, net
        self.fakes = {n: FakeServer(n, alpha.certificate) for n in ("gamma", "delta")}

    async def __aenter__(self):
        self._opened = contextlib.AsyncExitStack()
        for one in self.fakes.values():
            await self._opened.enter_async_context(one)
        return self

    async def __aexit__(self, *_):
        await self._opened.aclose()

    async def user(self, name, homes):
        routes = {OURS: (OURS, self.alpha.url), **{n: f.route for n, f in self.fakes.items()}}
        user = await self.net.user(name, known_to=(self.alpha,), urls=[routes[h] for h in homes])
        user.home = self.alpha if OURS in homes else None
        return user

    async def second_server(self, name="gamma"):
        """A connection that says it is that server."""
        client = await self.net.connect(self.alpha)
        await client.call("ServerHello", {"serverLogin": name, "protocolVersion": 1})
        return client

    def nobody_called(self):
        assert [f.connections for f in self.fakes.values()] == [0, 0]


@pytest.fixture
async def others(alpha, net):
    async with Others(alpha, net) as o:
        yield o


def copies(server, *users):
    """Who owns which copy: {(owner, type, courier)}."""
    query = """SELECT owner_login, message_type, courier FROM signed_messages
                WHERE from_login = ANY (%s)"""
    return {tuple(r.values()) for r in server.rows(query, [[u.login for u in users]])}


def told(server, user):
    """The user's event log there: [(type of the container, or state change)]."""
    query = "SELECT message_key, kind FROM user_events WHERE owner_login = %s ORDER BY pts"
    rows = server.rows(query, [user.login])
    return [int(r["message_key"].rpartition("|")[2]) if r["kind"] == 1 else "state" for r in rows]


def outbox(server, user):
    query = "SELECT primary_message_key FROM dm_sync_outbox WHERE owner_login = %s ORDER BY 1"
    return [r["primary_message_key"] for r in server.rows(query, [user.login])]


def check_born_delivered(server, key):
    row = server.delivery(key)
    assert row["state"] == "delivered" and row["delivered_via"] == server.login
    assert row["attempt_no"] == 1 and row["row_version"] == 1
    assert row["next_attempt_at_ms"] is None and row["lease_owner"] is None


def check_due_at_once(server, key):
    """Left to deliveryd, which finds it now."""
    row = server.delivery(key)
    assert row["state"] == "accepted" and row["attempt_no"] == 1 and row["claims"] == 0
    assert row["due_after_ms"] == 0
    assert row["lease_owner"] is None and row["lease_until_ms"] is None
    return row


def blobs_of(kind, alice, bob):
    """(operation, its payload, key of the row's container) of one of alice's containers to bob."""
    if kind in ("text", "receipt"):
        pair = (
            alice.pair(bob) if kind == "text"
            else dm.receipt_pair(alice.login, bob.login, alice.key, (1, 1))
        )  # fmt: skip
        return "ReceiveOutcomingMessage", pair_payload(*pair), dm.parse(pair[1]).message_key()
    make, what = (dm.delete, (1, 1)) if kind == "deletion" else (dm.clear, 1)
    blob = make(alice.login, bob.login, alice.key, what)
    op = "DeleteMessage" if kind == "deletion" else "DeleteConversation"
    return op, {"blobB64": b64(blob)}, dm.parse(blob).message_key()


KINDS = ["text", "receipt", "deletion", "clearing"]

# ---- this server serves both ----

SHARED = {
    "the same one": (["alpha"], ["alpha"]),
    "the same two": (["alpha", "gamma"], ["alpha", "gamma"]),
    "the same two, crossed": (["gamma", "alpha"], ["alpha", "gamma"]),
    "one of two, the first": (["alpha", "gamma"], ["alpha", "delta"]),
    "one of two, the second": (["gamma", "alpha"], ["delta", "alpha"]),
    "his only one": (["alpha", "gamma"], ["alpha"]),
    "the sender's only one": (["alpha"], ["delta", "alpha"]),
}


@pytest.mark.parametrize("brought_by", ["client", "gamma"])
@pytest.mark.parametrize("homes", SHARED.values(), ids=SHARED)
async def test_a_text_is_born_delivered(alpha, net, others, homes, brought_by):
    alice, bob = await others.user("alice", homes[0]), await others.user("bob", homes[1])
    at_alice, at_bob = await net.session(alice), await net.session(bob)
    pair = alice.pair(bob)
    client = await (net.connect(alpha) if brought_by == "client" else others.second_server())
    op = "SendMessagePair" if brought_by == "client" else "ReceiveOutcomingMessage"
    answer = await client.call(op, pair_payload(*pair))
    # Results are told to clients only.
    assert answer["deliveryState"] == ("delivered" if brought_by == "client" else "accepted")
    assert answer["deliveredWsSessions"] == 2
    check_born_delivered(alpha, answer["outgoingKey"])
    assert copies(alpha, alice) == {(bob.login, 1, False), (alice.login, 2, False)}
    for session, kind in ((at_alice, 2), (at_bob, 1)):
        event = await session.wait_event("IncomingDirectMessage")
        assert (event["messageType"], event["pts"]) == (kind, 1)
        assert event.payload.get("deliveryState") == ("delivered" if kind == 2 else None)
    assert told(alpha, alice) == [2] and told(alpha, bob) == [1]  # and no change of state
    # Each owner's copy goes to the owner's second server: deliveryd's work.
    assert outbox(alpha, alice) == [answer["outgoingKey"]] * (len(homes[0]) - 1)
    assert outbox(alpha, bob) == [answer["incomingKey"]] * (len(homes[1]) - 1)
    # A repeat from anybody changes nothing.
    for again in (client, await others.second_server()):
        await again.call("ReceiveOutcomingMessage", pair_payload(*pair))
    incoming = {"incomingBlobB64": b64(pair[0])}
    await client.call("ReceiveIncomingMessage", incoming)
    check_born_delivered(alpha, answer["outgoingKey"])
    assert told(alpha, alice) == [2] and told(alpha, bob) == [1]
    others.nobody_called()


@pytest.mark.parametrize("kind", KINDS[1:])
async def test_other_containers_are_born_delivered(alpha, others, kind):
    alice = await others.user("alice", ["alpha", "gamma"])
    for by in ("client", "gamma"):
        bob = await others.user("bob", ["delta", "alpha"])
        op, payload, key = blobs_of(kind, alice, bob)
        client = await (others.net.connect(alpha) if by == "client" else others.second_server())
        answer = await client.call(op, payload)
        assert answer["deliveryState"] == ("delivered" if by == "client" else "accepted")
        check_born_delivered(alpha, key)
    others.nobody_called()


async def test_the_same_two_servers_end_up_with_the_same(alpha, beta, net):
    """What deliveryd will bring to beta, in either order, and twice."""
    alice, bob = await net.user("alice", alpha, beta), await net.user("bob", beta, alpha)

    def stored(server):
        query = """SELECT owner_login, message_key, courier, encode(digest, 'hex') AS digest
                     FROM signed_messages WHERE from_login IN (%s, %s) ORDER BY 1, 2"""
        return [tuple(r.values()) for r in server.rows(query, [alice.login, bob.login])]

    from_alpha, from_beta = await net.connect(beta), await net.connect(alpha)
    for client, name in ((from_alpha, "alpha"), (from_beta, "beta")):
        await client.call("ServerHello", {"serverLogin": name, "protocolVersion": 1})
    texts = [(alice, bob, alpha, from_alpha), (bob, alice, beta, from_beta)] * 2
    for n, (author, reader, home, to_other) in enumerate(texts):
        pair = author.pair(reader, f"text {n}")
        sent = await (await net.connect(home)).send_pair(*pair)
        assert sent["deliveryState"] == "delivered"
        outgoing = ("ReceiveOutcomingMessage", pair_payload(*pair))
        incoming = ("ReceiveIncomingMessage", {"incomingBlobB64": b64(pair[0])})
        for op, payload in [outgoing, incoming, outgoing] if n < 2 else [incoming, outgoing]:
            await to_other.call(op, payload)
    assert stored(alpha) == stored(beta) and len(stored(alpha)) == 8
    for server in (alpha, beta):
        query = "SELECT * FROM dm_delivery_state WHERE from_login IN (%s, %s)"
        rows = server.rows(query, [alice.login, bob.login])
        assert {r["state"] for r in rows} == {"delivered"} and len(rows) == 4
        for user in (alice, bob):
            assert sorted(told(server, user)) == [1, 1, 2, 2]


# ---- notes to oneself ----


@pytest.mark.parametrize("by", ["client", "gamma"])
@pytest.mark.parametrize("homes", [["alpha"], ["alpha", "gamma"], ["gamma", "alpha"]])
async def test_a_note_to_oneself(alpha, net, others, homes, by):
    alice = await others.user("alice", homes)
    session = await net.session(alice)
    client = await (net.connect(alpha) if by == "client" else others.second_server())
    pair = alice.pair(alice, "milk, bread")
    answer = await client.call("ReceiveOutcomingMessage", pair_payload(*pair))
    assert answer["deliveryState"] == ("delivered" if by == "client" else "accepted")
    assert answer["deliveredWsSessions"] == 1
    check_born_delivered(alpha, answer["outgoingKey"])
    assert copies(alpha, alice) == {(alice.login, 1, False), (alice.login, 2, False)}
    await session.wait_pts(2)
    assert [e["messageType"] for e in session.events] == told(alpha, alice) == [1, 2]
    keys = [answer["incomingKey"], answer["outgoingKey"]] if len(homes) == 2 else []
    assert outbox(alpha, alice) == keys
    others.nobody_called()


# ---- only the other servers serve the recipient ----


async def test_the_senders_second_server_is_a_route_like_any_other(alpha, net, others):
    """Overlap in a server that is not this one: both of the recipient's are called, ours is not."""
    alice = await others.user("alice", ["alpha", "gamma"])
    bob = await others.user("bob", ["gamma", "delta"])
    pair = alice.pair(bob)
    sent = await (await net.connect(alpha)).send_pair(*pair)
    assert sent["deliveryState"] == "delivered"
    for server in others.fakes.values():
        await server.asked("ReceiveIncomingMessage")
        request = server.requests[1]["payload"]
        assert request == {"incomingBlobB64": b64(pair[0]), "sourceServerLogin": "alpha"}
    assert alpha.delivery(sent["outgoingKey"])["delivered_via"] in others.fakes
    assert copies(alpha, alice) == {(bob.login, 1, True), (alice.login, 2, False)}
    # The second server has the recipient's copy now; the author's still goes there.
    assert outbox(alpha, alice) == [sent["outgoingKey"]] and outbox(alpha, bob) == []


@pytest.mark.parametrize("named", ["hello", "source"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_the_second_server_brings_is_due_at_once(alpha, net, others, kind, named):
    alice, bob = await others.user("alice", ["alpha", "gamma"]), await others.user("bob", ["delta"])
    session = await net.session(alice)
    op, payload, key = blobs_of(kind, alice, bob)
    if named == "hello":
        client = await others.second_server()
    else:
        client, payload = await net.connect(alpha), {**payload, "sourceServerLogin": "gamma"}
    answer = await client.call(op, payload)
    assert answer["outgoingKey"] == key and answer["deliveryState"] == "accepted"
    assert answer["deliveredWsSessions"] == 1
    row = check_due_at_once(alpha, key)
    assert row["route_hint"] == "delta" and row["row_version"] == 1
    await session.wait_pts(1)
    # Again, from either: the row stays as it is, and nobody takes it from deliveryd.
    await client.call(op, payload)
    payload.pop("sourceServerLogin", None)
    again = await (await net.connect(alpha)).call(op, payload)
    assert again["deliveryState"] == "accepted"
    assert check_due_at_once(alpha, key) == row
    assert len(told(alpha, alice)) == 1
    others.nobody_called()


async def test_the_second_server_is_answered_after_the_commit(alpha, others):
    alice, bob = await others.user("alice", ["alpha", "gamma"]), await others.user("bob", ["delta"])
    client = await others.second_server()
    _, payload, key = blobs_of("text", alice, bob)
    holder = psycopg2.connect(alpha.admin_conninfo)
    query = "SELECT FROM user_event_heads WHERE owner_login = %s FOR UPDATE"
    holder.cursor().execute(query, [alice.login])
    answer = client.start("ReceiveOutcomingMessage", payload)
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    await eventually(lambda: alpha.rows(query, [alpha.database]), "the commit to wait")
    assert not answer.done() and copies(alpha, alice) == set()
    holder.close()
    assert (await asyncio.wait_for(answer, 30)).payload["deliveryState"] == "accepted"
    assert len(copies(alpha, alice)) == 2
    check_due_at_once(alpha, key)


async def test_an_edit_from_the_second_server_is_a_new_task(alpha, net, others):
    """After a delivery, after a failure, and while this server's own attempt is under way."""
    alice, bob = await others.user("alice", ["alpha", "gamma"]), await others.user("bob", ["delta"])
    delta = others.fakes["delta"]
    client, gamma = await net.connect(alpha), await others.second_server()
    stamps = {"time_ms": alpha.now_ms(), "nonce": 7}
    sent = await client.send_pair(*alice.pair(bob, "one", **stamps))
    key = sent["outgoingKey"]
    assert sent["deliveryState"] == "delivered"
    for n, final in enumerate(("delivered", "failed", "accepted"), 1):
        if final == "failed":
            query = """UPDATE dm_delivery_state SET state = 'failed', attempt_no = 5,
                       next_attempt_at_ms = NULL WHERE outgoing_key = %s"""
            alpha.rows(query, [key])
        revised = alice.pair(bob, "two", revision=stamps["time_ms"] + n, **stamps)
        await gamma.call("ReceiveOutcomingMessage", pair_payload(*revised))
        row = check_due_at_once(alpha, key)
        assert row["revision_time_ms"] == stamps["time_ms"] + n
        assert row["delivered_via"] is None and row["last_error"] is None
    assert delta.ops().count("ReceiveIncomingMessage") == 1


async def test_while_our_own_attempt_is_under_way(alpha, net, others):
    """The second server brings the same pair: the lease stays. It brings an edit: the attempt's
    success belongs to the older revision, and is not recorded for the newer one."""
    alice, bob = await others.user("alice", ["alpha", "gamma"]), await others.user("bob", ["delta"])
    delta = others.fakes["delta"]
    delta.request = fake.in_turn(fake.waits, fake.answers())
    client, gamma = await net.session(alice), await others.second_server()
    stamps = {"time_ms": alpha.now_ms(), "nonce": 7}
    pair = alice.pair(bob, "one", **stamps)
    answer = client.start("SendMessagePair", pair_payload(*pair))
    await delta.asked("ReceiveIncomingMessage")
    key = dm.parse(pair[1]).message_key()
    row = alpha.delivery(key)
    assert row["leased"] and row["due_after_ms"] == LEASE_MS
    await gamma.call("ReceiveOutcomingMessage", pair_payload(*pair))
    assert alpha.delivery(key) == row
    edit = alice.pair(bob, "two", revision=stamps["time_ms"] + 1, **stamps)
    await gamma.call("ReceiveOutcomingMessage", pair_payload(*edit))
    row = check_due_at_once(alpha, key)
    delta.gate.set()
    assert (await asyncio.wait_for(answer, 30)).payload["deliveryState"] == "accepted"
    assert check_due_at_once(alpha, key) == row
    assert told(alpha, alice) == [2, 2]  # the text and its edit


async def test_a_client_may_use_the_servers_name_for_the_operation(alpha, net, others):
    """No hello, no source: a client, whatever the operation is called. Naming a stranger does not
    make it a server."""
    alice, bob = await others.user("alice", ["alpha", "gamma"]), await others.user("bob", ["delta"])
    client = await net.connect(alpha)
    for source in ({}, {"sourceServerLogin": "epsilon"}):
        payload = {**pair_payload(*alice.pair(bob)), **source}
        answer = await client.call("ReceiveOutcomingMessage", payload)
        assert answer["deliveryState"] == "delivered"
    assert others.fakes["delta"].ops().count("ReceiveIncomingMessage") == 2


# ---- the recipient comes to this server meanwhile ----


async def test_a_recipient_who_moved_here(alpha, net, others):
    """His old server says so after the call began: the row is given back, due at once, and the slot
    is not used."""
    alice, bob = await others.user("alice", ["alpha"]), await others.user("bob", ["gamma"])
    gamma = others.fakes["gamma"]
    gamma.request = fake.in_turn(fake.waits, fake.answers(403, "LOCAL_SERVER_NOT_ACCESS_SERVER"))
    client, pair = await net.connect(alpha), alice.pair(bob)
    answer = client.start("SendMessagePair", pair_payload(*pair))
    await gamma.asked("ReceiveIncomingMessage")
    alpha.shinectl("user", "set-servers", bob.login, "--access", f"alpha={alpha.url}")
    gamma.gate.set()
    sent = (await asyncio.wait_for(answer, 30)).payload
    assert sent["deliveryState"] == "accepted"
    row = alpha.delivery(sent["outgoingKey"])
    assert row["state"] == "accepted" and row["attempt_no"] == 1 and row["lease_owner"] is None
    assert row["next_attempt_at_ms"] == row["updated_at_ms"] and row["route_hint"] == "alpha"
    assert "alpha: serves the recipient now" in row["last_error"]
    assert others.fakes["delta"].connections == 0
    # Whoever comes first with the copy makes it his: here the sender, who repeats.
    again = await client.send_pair(*pair)
    assert again["deliveryState"] == "delivered" and told(alpha, bob) == [1]
    assert alpha.delivery(sent["outgoingKey"])["delivered_via"] == "alpha"


async def test_a_recipient_who_came_before(alpha, net, others):
    """A message waits, and its recipient is served here now: an edit is delivered at once."""
    alice, bob = await others.user("alice", ["alpha"]), await others.user("bob", ["gamma"])
    others.fakes["gamma"].request = fake.answers(500, "INTERNAL_ERROR")
    client = await net.connect(alpha)
    stamps = {"time_ms": alpha.now_ms(), "nonce": 7}
    sent = await client.send_pair(*alice.pair(bob, "one", **stamps))
    assert sent["deliveryState"] == "accepted"
    alpha.shinectl("user", "set-servers", bob.login, "--access", f"alpha={alpha.url}")
    edit = alice.pair(bob, "two", revision=stamps["time_ms"] + 1, **stamps)
    assert (await client.send_pair(*edit))["deliveryState"] == "delivered"
    assert copies(alpha, alice) == {(bob.login, 1, False), (alice.login, 2, False)}
    row = alpha.delivery(sent["outgoingKey"])
    assert row["state"] == "delivered" and row["delivered_via"] == "alpha"
    assert told(alpha, bob) == [1]
    assert others.fakes["gamma"].ops().count("ReceiveIncomingMessage") == 1
