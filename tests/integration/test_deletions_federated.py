"""Deletions that travel between servers."""

import shine_dm as dm
from example_client import b64, text_of
from support.peers import FalsePeer, hello_answer
from support.refusals import content
from support.waiting import eventually

TOLD = 60
GONE = [("gamma", "wss://127.0.0.1:1/ws")]


async def texts(session, with_user):
    return [text_of(item) async for item in session.history(with_user.login)][::-1]


def tombstone(user, other, text, **options):
    c = dm.parse(text)
    return dm.delete(user.login, other.login, user.key, c.ref(), c.from_ != user.login, **options)


async def two_homes(alpha, beta, net):
    alice = await net.user("alice", alpha, known_to=(beta,))
    bob = await net.user("bob", beta, known_to=(alpha,))
    return alice, bob, await net.session(alice), await net.session(bob)


async def delivered(server, key):
    await eventually(lambda: server.delivery(key)["state"] == "delivered", "the tombstone's row")


async def test_a_text_is_deleted_on_the_other_server(alpha, beta, net):
    alice, bob, a, b = await two_homes(alpha, beta, net)
    doomed, other = alice.pair(bob, "doomed"), alice.pair(bob, "stays")
    await a.send_pair(*doomed)
    await a.send_pair(*other)
    await b.wait_pts(2, timeout=TOLD)
    blob = tombstone(alice, bob, doomed[0])
    answer = await a.call("DeleteMessage", {"blobB64": b64(blob)})
    event = await b.wait_event(predicate=lambda p: p.get("messageType") == 5, timeout=TOLD)
    assert event["messageKey"] == answer["outgoingKey"]
    assert await texts(a, bob) == await texts(b, alice) == ["stays"]
    await delivered(alpha, answer["outgoingKey"])
    assert alpha.delivery(answer["outgoingKey"])["delivered_via"] == "beta"
    # The other server has nothing to deliver.
    assert not beta.rows(
        "SELECT 1 FROM dm_delivery_state WHERE outgoing_key = %s", [answer["outgoingKey"]]
    )
    # The reader deletes too, the other way round.
    answer = await b.call("DeleteMessage", {"blobB64": b64(tombstone(bob, alice, other[0]))})
    key = answer["outgoingKey"]
    await a.wait_event(predicate=lambda p: p.get("messageKey") == key, timeout=TOLD)
    assert await texts(a, bob) == await texts(b, alice) == []
    await delivered(beta, answer["outgoingKey"])
    assert not [e for e in a.events if e.op == "DmDeliveryStateChanged"
                and e["outgoingKey"].endswith(("|5", "|7"))]


async def test_a_conversation_is_deleted_on_the_other_server(alpha, beta, net):
    alice, bob, a, b = await two_homes(alpha, beta, net)
    for n in range(1, 4):
        await a.send_pair(*alice.pair(bob, f"a{n}", time_ms=n * 10))
        await b.send_pair(*bob.pair(alice, f"b{n}", time_ms=n * 10 + 1))
    await a.wait_pts(9, timeout=TOLD)
    await b.wait_pts(9, timeout=TOLD)
    answer = await b.delete_conversation(alice.login, 21)
    await a.wait_event(predicate=lambda p: p.get("messageType") == 7, timeout=TOLD)
    assert await texts(a, bob) == await texts(b, alice) == ["a3", "b3"]
    await delivered(beta, answer["outgoingKey"])
    # The courier's copies went with it.
    for server in (alpha, beta):
        kept = server.rows("SELECT time_ms FROM signed_messages WHERE message_type IN (1, 2)"
                           " AND from_login IN (%s, %s)", [alice.login, bob.login])
        assert {row["time_ms"] for row in kept} == {30, 31}


async def test_what_is_for_the_author_alone_stays_with_him(alpha, net):
    async def handler(request):
        return hello_answer("gamma") if request["op"] == "ServerHello" else {}

    async with FalsePeer("gamma", alpha.certificate, handler) as gamma:
        alice = await net.user("alice", alpha)
        bob = await net.user("bob", known_to=(alpha,), urls=[("gamma", gamma.url)])
        a = await net.session(alice)
        text = alice.pair(bob)
        await a.send_pair(*text)
        own = tombstone(alice, bob, text[0], for_both=False)
        await a.call("DeleteMessage", {"blobB64": b64(own)})
        await a.delete_conversation(bob.login, 5, for_both=False)
        assert gamma.ops() == ["ServerHello", "ReceiveIncomingMessage"]
        # For both: by the same operations, named as the source.
        blobs = {
            "DeleteMessage": tombstone(alice, bob, text[0]),
            "DeleteConversation": dm.clear(alice.login, bob.login, alice.key, 5),
        }
        for op, blob in blobs.items():
            answer = await a.call(op, {"blobB64": b64(blob)})
            assert answer["deliveryState"] == "delivered"
            request = gamma.requests[-1]
            assert request["op"] == op
            assert request["payload"] == {"blobB64": b64(blob), "sourceServerLogin": "alpha"}
            again = await a.call(op, {"blobB64": b64(blob)})
            assert again["deliveryState"] == "delivered" and gamma.requests[-1] is request


async def test_what_a_server_brings(alpha, net):
    """gamma serves bob, alpha serves alice: his tombstones for both come from there."""
    alice = await net.user("alice", alpha)
    bob = await net.user("bob", known_to=(alpha,), urls=GONE)
    a, gamma = await net.session(alice), await net.connect(alpha)
    await gamma.call("ServerHello", {"serverLogin": "gamma", "protocolVersion": 1})
    text = bob.pair(alice, "from afar")
    await gamma.call("ReceiveIncomingMessage", {"incomingBlobB64": b64(text[0])})
    assert await texts(a, bob) == ["from afar"]
    blob = tombstone(bob, alice, text[0])
    payload = {"blobB64": b64(blob), "sourceServerLogin": "gamma"}
    answer = await gamma.call("DeleteMessage", payload)
    assert answer["deliveryState"] == "accepted" and answer["deliveredWsSessions"] == 1
    assert await texts(a, bob) == []
    await a.wait_event(predicate=lambda p: p.get("messageType") == 5, timeout=TOLD)
    key = answer["outgoingKey"]
    assert not alpha.rows("SELECT 1 FROM dm_delivery_state WHERE outgoing_key = %s", [key])
    before = content(alpha)
    await gamma.call("DeleteMessage", payload)
    # The text again, late: a success that stores nothing.
    await gamma.call("ReceiveIncomingMessage", {"incomingBlobB64": b64(text[0])})
    assert content(alpha) == before
    # Client rules do not bind servers: a clock that is off by hours.
    ahead = alpha.now_ms() + 3 * 3_600_000
    clear = dm.clear(bob.login, alice.login, bob.key, ahead, time_ms=ahead)
    await gamma.call("DeleteConversation", {"blobB64": b64(clear)})


async def test_the_authors_second_server_delivers_too(alpha, net):
    """By ReceiveOutcoming's rules: stored at once, the delivery left to deliveryd."""
    alice = await net.user("alice", alpha, urls=[("delta", "wss://127.0.0.1:1/ws")])
    bob = await net.user("bob", known_to=(alpha,), urls=GONE)
    delta = await net.connect(alpha)
    await delta.call("ServerHello", {"serverLogin": "delta", "protocolVersion": 1})
    blob = dm.delete(alice.login, bob.login, alice.key, (1, 1))
    answer = await delta.call("DeleteMessage", {"blobB64": b64(blob), "sourceServerLogin": "delta"})
    assert answer["deliveryState"] == "accepted"
    row = alpha.delivery(answer["outgoingKey"])
    assert row["state"] == "accepted" and row["attempt_no"] == 1 and row["due_after_ms"] == 0
    assert row["lease_owner"] is None
