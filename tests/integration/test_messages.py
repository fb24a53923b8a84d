"""Sending between users of one server: what is stored, answered, and shown to their sessions."""

import asyncio
import hashlib

import shine_dm as dm
from example_client import b64, pair_payload, text_of, unb64
from support.waiting import eventually

COPIES = "SELECT * FROM signed_messages WHERE base_key = %s ORDER BY message_type"
TOLD = 60  # for events that may have to travel a chain of processes on a busy machine


def sha256(blob):
    return hashlib.sha256(blob).digest()


def copies(server, base_key):
    return server.rows(COPIES, [base_key])


def events_of(server, user):
    """The whole event log of a user as (pts, messageKey)."""
    query = "SELECT pts, message_key FROM user_events WHERE owner_login = %s ORDER BY pts"
    return [(row["pts"], row["message_key"]) for row in server.rows(query, [user.login])]


async def test_both_copies_are_stored_as_they_were_signed(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    incoming, outgoing = alice.pair(carol, "hällo 😀")
    before = alpha.now_ms()
    answer = await (await net.connect(alpha)).send_pair(incoming, outgoing)
    key = dm.parse(incoming).base_key()
    assert answer == {
        "baseKey": key,
        "incomingKey": key + "|1",
        "outgoingKey": key + "|2",
        "deliveryState": "delivered",
        "deliveredWsSessions": 0,
        "deliveredWebPushSessions": 0,
    }
    for row, blob, owner in zip(copies(alpha, key), (incoming, outgoing), (carol, alice)):
        assert bytes(row["blob"]) == blob
        assert bytes(row["digest"]) == sha256(blob)
        assert row["owner_login"] == owner.login and row["courier"] is False
        assert before <= row["created_at_ms"] <= alpha.now_ms()
    row = alpha.delivery(key + "|2")
    assert row["state"] == "delivered" and row["delivered_via"] == "alpha"
    assert row["next_attempt_at_ms"] is None and row["lease_owner"] is None
    assert (row["from_login"], row["to_login"]) == (alice.login, carol.login)


async def test_both_parties_are_told(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    at_alice, at_carol = await net.session(alice), await net.session(carol)
    for n in range(1, 4):
        sent = await at_alice.send_text(carol.login, f"message {n}")
        assert sent["deliveredWsSessions"] == 1  # carol's; the asking one is not counted
        own = await at_alice.wait_event("IncomingDirectMessage", timeout=TOLD)
        got = await at_carol.wait_event("IncomingDirectMessage", timeout=TOLD)
        assert own["pts"] == got["pts"] == n
        assert (own["messageType"], got["messageType"]) == (2, 1)
        assert (own["messageKey"], got["messageKey"]) == (sent["outgoingKey"], sent["incomingKey"])
        assert own["deliveryState"] == "delivered" and "deliveryState" not in got.payload
        for event in (own, got):
            assert event["baseKey"] == sent["baseKey"] and event["eventId"]
            assert (event["fromLogin"], event["toLogin"]) == (alice.login, carol.login)
            assert event["revisionTimeMs"] == 0 and event["reencryptedAtMs"] == 0
            assert event["timeMs"] == dm.parse(unb64(event["blobB64"])).time_ms
            assert text_of(event) == f"message {n}"
    assert len({e["eventId"] for e in at_carol.events}) == 3
    assert {e.op for e in at_alice.events + at_carol.events} == {"IncomingDirectMessage"}


async def test_the_counter_counts_connected_sessions_of_both(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    stranger = await net.connect(alpha)
    asking, _, _ = [await net.session(alice) for _ in range(3)]
    gone, _ = await net.session(carol), await net.session(carol)
    assert (await asking.send_text(carol.login, "1"))["deliveredWsSessions"] == 4
    assert (await stranger.send_pair(*alice.pair(carol)))["deliveredWsSessions"] == 5
    await gone.close()
    query = "SELECT connected_to FROM active_sessions WHERE session_id = %s"
    await eventually(lambda: alpha.value(query, [gone.session_id]) is None, "the disconnection")
    assert (await asking.send_text(carol.login, "2"))["deliveredWsSessions"] == 3


async def test_a_repeat_changes_nothing(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    at_carol = await net.session(carol)
    c = await net.session(alice)
    pair = alice.pair(carol)
    first = await c.send_pair(*pair)
    before = copies(alpha, first["baseKey"]), alpha.delivery(first["outgoingKey"])
    for _ in range(3):
        again = await c.send_pair(*pair)
        assert again == {**first, "deliveredWsSessions": 0}
    assert (copies(alpha, first["baseKey"]), alpha.delivery(first["outgoingKey"])) == before
    await c.send_text(carol.login, "next")
    await at_carol.wait_pts(2)
    assert at_carol.pts() == [1, 2]


async def test_the_same_pair_many_times_at_once_is_one_message(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    connections = [await net.connect(alpha) for _ in range(6)]
    pair = alice.pair(carol)
    answers = await asyncio.gather(*(c.send_pair(*pair) for c in connections for _ in range(5)))
    assert {a["deliveryState"] for a in answers} == {"delivered"}
    key = answers[0]["baseKey"]
    assert len(copies(alpha, key)) == 2
    assert events_of(alpha, alice) == [(1, key + "|2")]
    assert events_of(alpha, carol) == [(1, key + "|1")]


async def test_a_note_to_self(alpha, net):
    alice = await net.user("alice", alpha)
    c, other = await net.session(alice), await net.session(alice)
    sent = await c.send_text(alice.login, "milk")
    assert sent["deliveryState"] == "delivered" and sent["deliveredWsSessions"] == 1
    for session in (c, other):
        await session.wait_pts(2)
        assert session.pts() == [1, 2]
        assert [e["messageKey"] for e in session.events] == [
            sent["incomingKey"],
            sent["outgoingKey"],
        ]
    items = [item async for item in c.history(alice.login)]
    assert [item["messageType"] for item in items] == [2, 1]
    assert {item["deliveryState"] for item in items} == {"delivered", None}


async def test_an_edit_replaces_the_text_and_is_told_again(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    c, at_carol = await net.session(alice), await net.session(carol)
    stamps = {"time_ms": 1_774_700_000_123, "nonce": 7}
    first = await c.send_text(carol.login, "helo", **stamps)
    created = copies(alpha, first["baseKey"])[0]["created_at_ms"]
    await at_carol.wait_pts(1)  # an event that is read later shows the edit already
    edit = alice.pair(carol, "hello", revision=1_774_700_001_000, **stamps)
    second = await c.send_pair(*edit)
    assert second["baseKey"] == first["baseKey"] and second["deliveryState"] == "delivered"
    await at_carol.wait_pts(2)
    assert [text_of(e) for e in at_carol.events] == ["helo", "hello"]
    assert at_carol.events[1]["revisionTimeMs"] == 1_774_700_001_000

    # Late and repeated older revisions are successes without effect.
    for old in (alice.pair(carol, "helo", **stamps), alice.pair(carol, "hel", **stamps)):
        assert (await c.send_pair(*old))["deliveryState"] == "delivered"
    stored = copies(alpha, first["baseKey"])
    assert [bytes(row["blob"]) for row in stored] == list(edit)
    assert stored[0]["created_at_ms"] == created
    assert alpha.delivery(first["outgoingKey"])["revision_time_ms"] == 1_774_700_001_000
    assert [pts for pts, _ in events_of(alpha, carol)] == [1, 2]


async def test_equal_revisions_with_other_bytes_converge(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    c = await net.connect(alpha)
    stamps = {"time_ms": 1_774_700_000_123, "nonce": 8}
    for order in (1, -1):
        stamps["nonce"] += 1
        pairs = [alice.pair(carol, text, **stamps) for text in ("one", "two", "three")]
        for pair in pairs[::order]:
            answer = await c.send_pair(*pair)
        blobs = [bytes(row["blob"]) for row in copies(alpha, answer["baseKey"])]
        for side in (0, 1):
            assert blobs[side] == max((pair[side] for pair in pairs), key=sha256)


async def test_a_reencrypted_copy_is_a_higher_revision(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    c = await net.connect(alpha)
    stamps = {"time_ms": 1_774_700_000_123, "nonce": 9}
    incoming, outgoing = alice.pair(carol, "body", **stamps)
    await c.send_pair(incoming, outgoing)
    _, again = alice.pair(carol, "body for a new device", reencrypted=5, **stamps)
    answer = await c.send_pair(incoming, again)  # only the author's copy is new
    stored = copies(alpha, answer["baseKey"])
    assert [bytes(row["blob"]) for row in stored] == [incoming, again]
    assert [row["reencrypted_at_ms"] for row in stored] == [0, 5]
    assert [pts for pts, _ in events_of(alpha, alice)] == [1, 2]
    assert [pts for pts, _ in events_of(alpha, carol)] == [1]


async def test_sessions_on_another_worker_are_told(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    one, two = await net.spread_sessions(carol, alpha)
    senders = [await net.connect(alpha) for _ in range(6)]  # on both workers
    for n, sender in enumerate(senders, 1):
        sent = await sender.send_pair(*alice.pair(carol, str(n)))
        assert sent["deliveredWsSessions"] == 2
    for session in (one, two):
        await session.wait_pts(len(senders), timeout=TOLD)
        assert session.pts() == [1, 2, 3, 4, 5, 6]
        assert [text_of(e) for e in session.events] == ["1", "2", "3", "4", "5", "6"]


async def test_200_pairs_at_once_over_several_connections(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    watching = [await net.session(alice), *await net.spread_sessions(carol, alpha)]
    connections = [await net.connect(alpha) for _ in range(5)]
    pairs = [alice.pair(carol, f"text {n}") for n in range(200)]
    started = [
        connections[n % 5].start("SendMessagePair", pair_payload(*pair))
        for n, pair in enumerate(pairs)
    ]
    answers = [answer.result() for answer in await asyncio.gather(*started)]
    assert {a["deliveryState"] for a in answers} == {"delivered"}
    blobs = {bytes(r["blob"]) for r in alpha.rows(
        "SELECT blob FROM signed_messages WHERE from_login = %s", [alice.login])}
    assert blobs == {blob for pair in pairs for blob in pair}
    for session in watching:
        await session.wait_pts(200, timeout=TOLD)
        assert session.pts() == list(range(1, 201))
    # The order in the log is the order on every connection, and every blob came along.
    for session, side in zip(watching, (1, 0, 0)):
        assert {unb64(e["blobB64"]) for e in session.events} == {pair[side] for pair in pairs}
        log = events_of(alpha, alice if side else carol)
        assert [(e["pts"], e["messageKey"]) for e in session.events] == log


async def test_everybody_writes_to_everybody_at_once(alpha, net):
    """Heads are locked in one order, so crossing conversations cannot deadlock."""
    users = [await net.user(name, alpha) for name in ("alice", "bert", "carol", "dora")]
    sessions = [await net.session(user) for user in users]
    sends = [
        session.send_text(to.login, f"{n}")
        for n in range(8)
        for session, user in zip(sessions, users)
        for to in users
    ]
    answers = await asyncio.gather(*sends)
    assert {a["deliveryState"] for a in answers} == {"delivered"}
    expected = 8 * (4 + 4)  # each user's outgoing and incoming copies, the notes to self included
    for session in sessions:
        await session.wait_pts(expected, timeout=TOLD)
        assert session.pts() == list(range(1, expected + 1))


async def test_the_largest_body_of_a_client(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    at_carol = await net.session(carol)
    c = await net.session(alice)
    body = b"\x07" * 65536
    sent = await c.send_text(carol.login, body)
    event = await at_carol.wait_event("IncomingDirectMessage")
    assert dm.parse(unb64(event["blobB64"])).body == body
    assert [bytes(r["blob"]) for r in copies(alpha, sent["baseKey"])][0] == unb64(event["blobB64"])


async def test_the_old_name_of_the_operation(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    c = await net.connect(alpha)
    pair = alice.pair(carol)
    payload = {**pair_payload(*pair), "sourceServerLogin": "elsewhere", "unknownField": [1]}
    answer = await c.call("ReceiveOutcomingMessage", payload)
    assert answer["outgoingKey"] == dm.parse(pair[1]).message_key()
    assert [bytes(row["blob"]) for row in copies(alpha, answer["baseKey"])] == list(pair)


async def test_base64_without_padding(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    c = await net.connect(alpha)
    for text in ("a", "ab", "abc"):
        incoming, outgoing = alice.pair(carol, text)
        payload = {
            "incomingBlobB64": b64(incoming).rstrip("="),
            "outgoingBlobB64": b64(outgoing).rstrip("="),
        }
        answer = await c.call("SendMessagePair", payload)
        assert [bytes(row["blob"]) for row in copies(alpha, answer["baseKey"])] == [
            incoming,
            outgoing,
        ]
