"""Read receipts: types 3 and 4."""

import itertools

import pytest
import shine_dm as dm
from example_client import b64, now_ms, pair_payload, unb64
from support.net import User
from support.refusals import code, content, refused
from support.waiting import eventually

TOLD = 60


async def pair_of_users(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    return alice, bob, await net.session(alice), await net.session(bob)


def receipt(reader, author, text, **stamps):
    """The pair by which `reader` tells that the text (a blob) was read."""
    ref = dm.parse(text).ref()
    return dm.receipt_pair(reader.login, author.login, reader.key, ref, **stamps)


async def read_times(session, with_user):
    return [item["readAtMs"] async for item in session.history(with_user.login)]


async def test_both_sides_see_that_a_text_was_read(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    await a.send_text(bob.login, "read me")
    text = await b.wait_event("IncomingDirectMessage", timeout=TOLD)
    sent = await b.send_receipt(text, read_at_ms=1_774_700_000_000)
    key = sent["baseKey"]
    assert sent == {
        "baseKey": key,
        "incomingKey": key + "|3",
        "outgoingKey": key + "|4",
        "deliveryState": "delivered",
        "deliveredWsSessions": 1,
        "deliveredWebPushSessions": 0,
    }
    told = await a.wait_event(predicate=lambda p: p.get("messageType") == 3, timeout=TOLD)
    own = await b.wait_event(predicate=lambda p: p.get("messageType") == 4, timeout=TOLD)
    for event, kind in ((told, 3), (own, 4)):
        assert event.op == "IncomingDirectMessage" and event["messageKey"] == f"{key}|{kind}"
        assert dm.parse(unb64(event["blobB64"])).receipt().read_at_ms == 1_774_700_000_000
    for session, other in ((a, bob), (b, alice)):
        (item,) = [i async for i in session.history(other.login)]  # receipts are not among them
        assert item["readAtMs"] == 1_774_700_000_000 and item["messageType"] in (1, 2)
        assert {e.op for e in session.events} == {"IncomingDirectMessage"}
    assert alpha.delivery(sent["outgoingKey"])["state"] == "delivered"


async def test_the_receipt_may_come_before_the_text(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    await b.send_pair(*receipt(bob, alice, text[0], read_at_ms=777))
    assert await read_times(a, bob) == []
    await a.send_pair(*text)
    assert await read_times(a, bob) == await read_times(b, alice) == [777]
    rows = alpha.rows("SELECT 1 FROM read_marks WHERE owner_login = ANY (%s)",
                      [[alice.login, bob.login]])
    assert rows == []


@pytest.mark.parametrize("order", list(itertools.permutations((500, 300, 400))))
async def test_the_earliest_of_several_counts(alpha, net, order):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    await a.send_pair(*text)
    for read_at in order:
        await b.send_pair(*receipt(bob, alice, text[0], read_at_ms=read_at))
    assert await read_times(a, bob) == await read_times(b, alice) == [300]


async def test_a_repeat_changes_nothing(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    await a.send_pair(*text)
    pair = receipt(bob, alice, text[0], read_at_ms=5)
    first = await b.send_pair(*pair)
    before = content(alpha)
    again = await b.send_pair(*pair)
    assert again == {**first, "deliveredWsSessions": 0}
    assert content(alpha) == before


async def test_an_edit_stays_read(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    stamps = {"time_ms": 1_774_700_000_000, "nonce": 9}
    text = alice.pair(bob, "helo", **stamps)
    await a.send_pair(*text)
    await b.send_pair(*receipt(bob, alice, text[0], read_at_ms=6))
    await a.send_pair(*alice.pair(bob, "hello", revision=7, **stamps))
    await a.send_pair(*alice.pair(bob, "hello", revision=7, reencrypted=8, **stamps))
    for session, other in ((a, bob), (b, alice)):
        (item,) = [i async for i in session.history(other.login)]
        assert item["readAtMs"] == 6
        assert (item["revisionTimeMs"], item["reencryptedAtMs"]) == (7, 8)


async def test_a_receipt_names_only_what_the_other_wrote(alpha, net):
    """A text of the same time and number from the reader himself is another text."""
    alice, bob, a, b = await pair_of_users(alpha, net)
    stamps = {"time_ms": 1_774_700_000_000, "nonce": 3}
    text = alice.pair(bob, **stamps)
    await a.send_pair(*text)
    await a.send_pair(*receipt(alice, bob, text[0]))  # alice reads "hers"
    assert await read_times(a, bob) == [None]
    await b.send_pair(*bob.pair(alice, "same stamps", **stamps))
    read = {i["fromLogin"]: i["readAtMs"] async for i in a.history(bob.login)}
    assert read[alice.login] is None and read[bob.login] is not None


async def test_sessions_on_both_workers_are_told(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    sessions = [*await net.spread_sessions(alice, alpha), *await net.spread_sessions(bob, alpha)]
    c = await net.connect(alpha)
    text = alice.pair(bob)
    await c.send_pair(*text)
    sent = await c.send_pair(*receipt(bob, alice, text[0]))
    assert sent["deliveredWsSessions"] == 4
    for session, types in zip(sessions, ((2, 3), (2, 3), (1, 4), (1, 4))):
        await session.wait_pts(2, timeout=TOLD)
        assert tuple(e["messageType"] for e in session.events) == types
        assert session.pts() == [1, 2]


# ---- between servers ----


async def test_a_receipt_reaches_the_authors_server(alpha, beta, net):
    alice = await net.user("alice", alpha, known_to=(beta,))
    bob = await net.user("bob", beta, known_to=(alpha,))
    a, b = await net.session(alice), await net.session(bob)
    text = alice.pair(bob, "read me over there")
    await a.send_pair(*text)
    await b.wait_event("IncomingDirectMessage", timeout=TOLD)
    sent = await b.send_pair(*receipt(bob, alice, text[0], read_at_ms=99))
    told = await a.wait_event(predicate=lambda p: p.get("messageType") == 3, timeout=TOLD)
    assert told["messageKey"] == sent["incomingKey"] and "deliveryState" not in told.payload
    assert await read_times(a, bob) == await read_times(b, alice) == [99]
    await eventually(
        lambda: beta.delivery(sent["outgoingKey"])["state"] == "delivered", "the receipt's row"
    )
    assert beta.delivery(sent["outgoingKey"])["delivered_via"] == "alpha"
    # Only texts have events of their state.
    assert not [e for e in b.events if e.op == "DmDeliveryStateChanged"]


async def test_a_receipt_that_a_server_brings(alpha, net):
    alice = await net.user("alice", alpha)
    bob = await net.user("bob", known_to=(alpha,), urls=[("gamma", "wss://127.0.0.1:1/ws")])
    a = await net.session(alice)
    text = alice.pair(bob)
    await a.send_pair(*text)
    incoming = receipt(bob, alice, text[0], read_at_ms=4)[0]
    payload = {"incomingBlobB64": b64(incoming), "sourceServerLogin": "gamma"}
    key = dm.parse(incoming).base_key()
    c = await net.connect(alpha)
    assert await c.call("ReceiveIncomingMessage", payload) == {
        "messageKey": key + "|3",
        "baseKey": key,
        "deliveredWsSessions": 1,
        "deliveredWebPushSessions": 0,
    }
    assert await read_times(a, bob) == [4]
    await a.wait_event(predicate=lambda p: p.get("messageType") == 3, timeout=TOLD)
    before = content(alpha)
    assert (await c.call("ReceiveIncomingMessage", payload))["deliveredWsSessions"] == 0
    assert content(alpha) == before


# ---- refusals ----


async def test_what_is_refused_and_leaves_nothing(alpha, net):
    alice, bob, a, _ = await pair_of_users(alpha, net)
    guest = await net.user("guest", known_to=(alpha,), urls=[("gamma", "wss://127.0.0.1:1/ws")])
    nobody = User("nobody_at_all", [])
    text = alice.pair(bob)
    await a.send_pair(*text)
    c = await net.connect(alpha)
    good = receipt(bob, alice, text[0], time_ms=5000, nonce=1)
    later = receipt(bob, alice, text[0], time_ms=5000, nonce=1, read_at_ms=5001)
    forged = receipt(User(bob.login, []), alice, text[0])
    ahead = alpha.now_ms() + 16 * 60_000
    own_text = bob.pair(alice, time_ms=5000, nonce=1)
    cases = [
        ("PAIR_MISMATCH", 400, (good[0], later[1])),  # not the same content
        ("PAIR_MISMATCH", 400, (good[1], good[0])),
        ("PAIR_MISMATCH", 400, (good[0], good[0])),
        ("PAIR_MISMATCH", 400, (good[0], own_text[1])),
        ("PAIR_MISMATCH", 400, (own_text[0], good[1])),
        ("PAIR_MISMATCH", 400, (good[0], receipt(bob, alice, text[0])[1])),
        ("BAD_SIGNATURE", 422, forged),
        ("BAD_SIGNATURE", 422, (good[0], good[1][:-1] + bytes((good[1][-1] ^ 1,)))),
        ("USER_NOT_FOUND", 404, receipt(nobody, alice, text[0])),
        ("USER_NOT_FOUND", 404, receipt(bob, nobody, text[0])),
        ("LOCAL_SERVER_NOT_ACCESS_SERVER", 403, receipt(guest, alice, text[0])),
        ("BAD_BLOB", 400, receipt(bob, alice, text[0], time_ms=ahead, read_at_ms=1)),
        ("BAD_BLOB", 400, receipt(bob, alice, text[0], read_at_ms=ahead)),
    ]
    before = content(alpha)
    for error, status, pair in cases:
        e = await refused(c, "SendMessagePair", pair_payload(*pair))
        assert code(e) == (status, error), e
        if error == "BAD_BLOB":
            assert e.message.startswith("BAD_TIME")
    for body in (b"", b"\x01" + b"\0" * 19, b"\x02" + b"\0" * 20, b"\x01" + b"\0" * 21):
        broken = [
            dm.sign(dm.encode(dm.Container(t, bob.login, alice.login, 5, 5, body=body)), bob.key)
            for t in dm.RECEIPTS
        ]
        e = await refused(c, "SendMessagePair", pair_payload(*broken))
        assert code(e) == (400, "BAD_BLOB") and e.message.startswith("BAD_BODY")
        e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(broken[0])})
        assert code(e) == (400, "BAD_BLOB") and e.message.startswith("BAD_BODY")
    for error, status, blob in (
        ("BAD_MESSAGE_TYPE", 400, good[1]),
        ("BAD_SIGNATURE", 422, forged[0]),
        ("USER_NOT_FOUND", 404, receipt(nobody, alice, text[0])[0]),
        ("LOCAL_SERVER_NOT_ACCESS_SERVER", 403, receipt(alice, guest, text[0])[0]),
    ):
        e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(blob)})
        assert code(e) == (status, error), e
    assert content(alpha) == before


async def test_clocks_of_receipts_are_judged_by_the_database(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    await a.send_pair(*text)
    pair = receipt(bob, alice, text[0], read_at_ms=now_ms() + 20 * 60_000)
    assert code(await refused(b, "SendMessagePair", pair_payload(*pair))) == (400, "BAD_BLOB")
    alpha.move_clock(10 * 60_000)
    try:
        await b.send_pair(*pair)
    finally:
        alpha.move_clock(0)
    assert await read_times(a, bob) == [dm.parse(pair[0]).receipt().read_at_ms]


async def test_receipts_for_what_was_deleted_for_both(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    sent = await a.send_pair(*text)
    await a.delete_message({"messageKey": sent["outgoingKey"]})
    before = content(alpha)
    e = await refused(b, "SendMessagePair", pair_payload(*receipt(bob, alice, text[0])))
    assert code(e) == (410, "DELETED")
    # A server that brings one has done its duty.
    blob = receipt(bob, alice, text[0])[0]
    payload = {"incomingBlobB64": b64(blob), "sourceServerLogin": "elsewhere"}
    await b.call("ReceiveIncomingMessage", payload)
    assert content(alpha) == before
