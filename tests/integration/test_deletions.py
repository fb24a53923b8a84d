"""DeleteMessage and DeleteConversation between users of one server: types 5 to 8."""

import pytest
import shine_dm as dm
from example_client import b64, pair_payload, text_of, unb64
from support.net import User
from support.refusals import content

TOLD = 60


async def pair_of_users(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    return alice, bob, await net.session(alice), await net.session(bob)


async def texts(session, with_user):
    """What a conversation shows, oldest first."""
    return [text_of(item) async for item in session.history(with_user.login)][::-1]


async def told_type(session, kind):
    """The next event of a type."""
    return await session.wait_event(predicate=lambda p: p.get("messageType") == kind, timeout=TOLD)


def tombstone(user, other, text, **options):
    """A message tombstone of `user` for a text (a blob)."""
    c = dm.parse(text)
    by_to = c.from_ != user.login
    return dm.delete(user.login, other.login, user.key, c.ref(), by_to, **options)


async def deleted(client, op, blob, **extra):
    return await client.call(op, {"blobB64": b64(blob), **extra})


# ---- one text ----


@pytest.mark.parametrize("who", ["author", "reader"])
async def test_either_of_the_two_deletes_for_both(alpha, net, who):
    alice, bob, a, b = await pair_of_users(alpha, net)
    doomed, other = alice.pair(bob, "doomed"), alice.pair(bob, "stays")
    await a.send_pair(*doomed)
    await a.send_pair(*other)
    user, peer, session = (alice, bob, a) if who == "author" else (bob, alice, b)
    blob = tombstone(user, peer, doomed[0])
    answer = await deleted(session, "DeleteMessage", blob)
    key = dm.parse(blob).message_key()
    assert answer == {
        "baseKey": dm.parse(blob).base_key(),
        "outgoingKey": key,
        "deliveryState": "delivered",
        "deliveredWsSessions": 1,
        "deliveredWebPushSessions": 0,
    }
    for s, with_user in ((a, bob), (b, alice)):
        assert await texts(s, with_user) == ["stays"]
        event = await told_type(s, 5)
        assert event["messageKey"] == key and "deliveryState" not in event.payload
        assert unb64(event["blobB64"]) == blob
        assert {e.op for e in s.events} == {"IncomingDirectMessage"}
    assert alpha.delivery(key)["state"] == "delivered"
    gone = dm.parse(doomed[1])
    assert not alpha.rows(
        "SELECT 1 FROM dm_delivery_state WHERE outgoing_key = %s", [gone.message_key()]
    )


async def test_deleting_for_oneself(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    one, two = alice.pair(bob, "one", time_ms=1), bob.pair(alice, "two", time_ms=2)
    await a.send_pair(*one)
    await b.send_pair(*two)
    for text in (one, two):
        answer = await deleted(a, "DeleteMessage", tombstone(alice, bob, text[0], for_both=False))
        assert answer["deliveryState"] == "accepted" and answer["outgoingKey"].endswith("|6")
        assert answer["deliveredWsSessions"] == 0
    assert await texts(a, bob) == [] and await texts(b, alice) == ["one", "two"]
    await a.wait_pts(4, timeout=TOLD)
    assert [e["messageType"] for e in a.events[2:]] == [6, 6]
    await a.send_text(bob.login, "the next thing that bob hears of")
    await b.wait_pts(3, timeout=TOLD)
    assert {e["messageType"] for e in b.events} == {1, 2}
    assert not alpha.rows(
        "SELECT 1 FROM dm_delivery_state WHERE outgoing_key LIKE %s", [f"{alice.login}|%|6"]
    )


async def test_the_tombstone_may_come_before_the_text(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob, "late")
    await deleted(a, "DeleteMessage", tombstone(alice, bob, text[0], for_both=False))
    sent = await a.send_pair(*text)  # only her own copy is covered
    assert sent["deliveryState"] == "delivered"
    assert await texts(a, bob) == [] and await texts(b, alice) == ["late"]
    await deleted(b, "DeleteMessage", tombstone(bob, alice, text[0]))
    assert await texts(b, alice) == []


async def test_deleted_for_both_cannot_be_sent_again(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    stamps = {"time_ms": 1_774_700_000_000, "nonce": 5}
    text = alice.pair(bob, **stamps)
    await a.send_pair(*text)
    await deleted(b, "DeleteMessage", tombstone(bob, alice, text[0]))
    before = content(alpha)
    for pair in (text, alice.pair(bob, "an edit", revision=9, **stamps)):
        answer = await a.start("SendMessagePair", pair_payload(*pair))
        assert (answer.status, answer.error) == (410, "DELETED")
    # From servers it is a success that stores nothing.
    server = await net.connect(alpha)
    await server.call("ServerHello", {"serverLogin": "gamma", "protocolVersion": 1})
    answer = await server.call("ReceiveOutcomingMessage", pair_payload(*text))
    assert answer["deliveryState"] == "accepted"
    await server.call("ReceiveIncomingMessage", {"incomingBlobB64": b64(text[0])})
    assert content(alpha) == before
    # A text of the same stamps from the other side is another text.
    await b.send_pair(*bob.pair(alice, "hers", **stamps))
    assert await texts(a, bob) == ["hers"]


async def test_both_deleting_for_themselves_is_410_too(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    await a.send_pair(*text)
    for user, other, session in ((alice, bob, a), (bob, alice, b)):
        own = tombstone(user, other, text[0], for_both=False)
        await deleted(session, "DeleteMessage", own)
    assert await texts(a, bob) == await texts(b, alice) == []
    answer = await a.start("SendMessagePair", pair_payload(*text))
    assert (answer.status, answer.error) == (410, "DELETED")


async def test_receipts_go_with_the_text(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    await a.send_pair(*text)
    read = await b.send_receipt({"messageKey": dm.parse(text[0]).message_key()})
    await deleted(a, "DeleteMessage", tombstone(alice, bob, text[0]))
    assert not alpha.rows("SELECT 1 FROM signed_messages WHERE base_key = %s", [read["baseKey"]])
    rows = alpha.rows("SELECT * FROM read_marks WHERE owner_login IN (%s, %s)",
                      [alice.login, bob.login])
    assert rows == []


async def test_a_repeat_changes_nothing(alpha, net):
    alice, bob, a, _ = await pair_of_users(alpha, net)
    text = alice.pair(bob)
    await a.send_pair(*text)
    for op, blob in (
        ("DeleteMessage", tombstone(alice, bob, text[0])),
        ("DeleteMessage", tombstone(alice, bob, text[0], for_both=False)),
        ("DeleteConversation", dm.clear(alice.login, bob.login, alice.key, 1)),
        ("DeleteConversation", dm.clear(alice.login, bob.login, alice.key, 2, for_both=False)),
    ):
        first = await deleted(a, op, blob)
        before = content(alpha)
        assert await deleted(a, op, blob) == {**first, "deliveredWsSessions": 0}
        assert content(alpha) == before


async def test_notes_to_self(alpha, net):
    alice = await net.user("alice", alpha)
    a = await net.session(alice)
    for n, kind in enumerate((5, 6)):
        sent = await a.send_text(alice.login, "note")
        note = {"messageKey": sent["outgoingKey"]}
        answer = await a.delete_message(note, for_both=kind == 5)
        assert answer["outgoingKey"].endswith(f"|{kind}")
        assert await texts(a, alice) == []
        await a.wait_pts(3 * (n + 1), timeout=TOLD)
        assert a.events[-1]["messageType"] == kind
    assert a.pts() == [1, 2, 3, 4, 5, 6]


async def test_nobody_else_deletes(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    eve = await net.user("eve", alpha)
    e = await net.session(eve)
    text = alice.pair(bob, "untouched")
    await a.send_pair(*text)
    ref = dm.parse(text[0]).ref()
    for other in (alice, bob):
        for by_to in (False, True):
            blob = dm.delete(eve.login, other.login, eve.key, ref, by_to)
            await deleted(e, "DeleteMessage", blob)
        await e.delete_conversation(other.login, alpha.now_ms() - 1)
    assert await texts(a, bob) == await texts(b, alice) == ["untouched"]


# ---- conversations ----


async def test_a_conversation_up_to_a_time_for_both(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    carol = await net.user("carol", alpha)
    for n in range(1, 6):
        await a.send_pair(*alice.pair(bob, f"a{n}", time_ms=n * 100))
        await b.send_pair(*bob.pair(alice, f"b{n}", time_ms=n * 100 + 1))
    await a.send_text(carol.login, "elsewhere", time_ms=1)
    answer = await a.delete_conversation(bob.login, 301)
    assert answer["outgoingKey"].endswith("|7") and answer["deliveryState"] == "delivered"
    for session, other in ((a, bob), (b, alice)):
        assert await texts(session, other) == ["a4", "b4", "a5", "b5"]
        event = await told_type(session, 7)
        assert event["messageKey"] == answer["outgoingKey"]
    assert await texts(a, carol) == ["elsewhere"]
    late = await a.start("SendMessagePair", pair_payload(*alice.pair(bob, "late", time_ms=301)))
    assert (late.status, late.error) == (410, "DELETED")
    await a.send_pair(*alice.pair(bob, "in time", time_ms=302))
    # Effects add up: the largest time counts.
    await b.delete_conversation(alice.login, 401)
    await b.delete_conversation(alice.login, 1)
    assert await texts(a, bob) == await texts(b, alice) == ["a5", "b5"]


async def test_a_conversation_for_oneself(alpha, net):
    alice, bob, a, b = await pair_of_users(alpha, net)
    for n in range(1, 4):
        await a.send_pair(*alice.pair(bob, f"a{n}", time_ms=n))
    answer = await b.delete_conversation(alice.login, 2, for_both=False)
    assert answer["outgoingKey"].endswith("|8") and answer["deliveryState"] == "accepted"
    assert await texts(a, bob) == ["a1", "a2", "a3"] and await texts(b, alice) == ["a3"]
    await b.wait_pts(4, timeout=TOLD)
    assert b.events[-1]["messageType"] == 8
    # Bob's copy is covered, alice's is not: it is stored for her alone.
    await a.send_pair(*alice.pair(bob, "a0", time_ms=0))
    assert await texts(b, alice) == ["a3"] and (await texts(a, bob))[0] == "a0"


async def test_sessions_on_both_workers_are_told(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    sessions = [*await net.spread_sessions(alice, alpha), *await net.spread_sessions(bob, alpha)]
    c = await net.connect(alpha)
    text = alice.pair(bob)
    await c.send_pair(*text)
    for session in sessions:
        await session.wait_pts(1, timeout=TOLD)
    answer = await deleted(c, "DeleteMessage", tombstone(bob, alice, text[0]))
    assert answer["deliveredWsSessions"] == 4
    clear = dm.clear(alice.login, bob.login, alice.key, 5)
    assert (await deleted(c, "DeleteConversation", clear))["deliveredWsSessions"] == 4
    for session in sessions:
        await session.wait_pts(3, timeout=TOLD)
        assert [e["messageType"] for e in session.events[1:]] == [5, 7]
        assert session.pts() == [1, 2, 3]


# ---- what was not delivered yet ----


async def test_what_waits_for_delivery_is_never_delivered(alpha, net):
    alice = await net.user("alice", alpha)
    away = await net.user("away", known_to=(alpha,), urls=[("gamma", "wss://127.0.0.1:1/ws")])
    a = await net.session(alice)
    mine, both = alice.pair(away, "for me"), alice.pair(away, "for both")
    for pair in (mine, both):
        assert (await a.send_pair(*pair))["deliveryState"] == "accepted"
    await alpha.settled()
    await deleted(a, "DeleteMessage", tombstone(alice, away, mine[0], for_both=False))
    # What alice deletes for herself is still delivered to the other.
    row = alpha.delivery(dm.parse(mine[1]).message_key())
    assert row["state"] == "accepted" and row["attempt_no"] == 2
    blob = tombstone(alice, away, both[0])
    answer = await deleted(a, "DeleteMessage", blob)
    assert answer["deliveryState"] == "accepted"
    base = dm.parse(both[0]).base_key()
    assert not alpha.rows("SELECT 1 FROM dm_delivery_state WHERE base_key = %s", [base])
    assert not alpha.rows("SELECT 1 FROM signed_messages WHERE base_key = %s", [base])
    await alpha.settled()
    row = alpha.delivery(answer["outgoingKey"])
    assert row["state"] == "accepted" and row["attempt_no"] == 2 and row["claims"] == 0
    assert row["incoming_key"] == answer["outgoingKey"]
    assert await texts(a, away) == []


async def test_a_stranger_with_the_right_stamps_is_a_stranger(alpha, net):
    """The key of a text is not a secret; the signature is what counts."""
    alice, bob, a, b = await pair_of_users(alpha, net)
    text = alice.pair(bob, "kept")
    await a.send_pair(*text)
    forger = User(alice.login, [])
    answer = await a.start("DeleteMessage", {"blobB64": b64(tombstone(forger, bob, text[0]))})
    assert (answer.status, answer.error) == (422, "BAD_SIGNATURE")
    assert await texts(b, alice) == ["kept"]
