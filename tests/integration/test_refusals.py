"""Everything SendMessagePair and ReceiveIncomingMessage refuse. Nothing of it is stored."""

import dataclasses
import struct

import pytest
import shine_dm as dm
from nacl.signing import SigningKey
from example_client import ShineError, b64, now_ms, pair_payload
from support.net import User

STORED = """SELECT (SELECT count(*) FROM signed_messages) + (SELECT count(*) FROM dm_delivery_state)
                 + (SELECT count(*) FROM user_events) AS n"""


@pytest.fixture
def nothing_stored(alpha):
    yield
    assert alpha.value(STORED) == alpha.before


async def trio(alpha, net):
    """alice and carol on alpha, and a connection. From here on nothing may be stored."""
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    alpha.before = alpha.value(STORED)
    return alice, carol, await net.connect(alpha)


async def refused(client, op, payload):
    with pytest.raises(ShineError) as e:
        await client.call(op, payload)
    assert await client.call("Ping", {"ts": 1}) == {"ts": 1}
    return e.value


def signed(user, to, kind, **fields):
    """One container of `user`, any of its fields changed, wrong ones included."""
    base = dm.Container(kind, user.login, to.login, now_ms(), 5, body=b"\0text")
    return dm.sign(dm.encode(dataclasses.replace(base, **fields)), user.key)


def damaged(blob, position, value, user):
    """`blob` with other bytes at a position, signed again."""
    unsigned = bytearray(blob[: -dm.SIG_BYTES])
    unsigned[position : position + len(value)] = value
    return dm.sign(bytes(unsigned), user.key)


def bad_blobs(user, to):
    good = signed(user, to, 1)
    body_at = 8 + 1 + 1 + 1 + len(user.login) + 1 + len(to.login) + 8 + 4 + 8 + 8
    from_at, to_at = 10, 11 + len(user.login)
    yield "BAD_LENGTH", good[:7]
    yield "BAD_MAGIC", b"SHiNE_DX" + good[8:]
    yield "BAD_VERSION", damaged(good, 8, b"\x02", user)
    yield "BAD_TYPE", damaged(good, 9, b"\x00", user)
    yield "BAD_TYPE", damaged(good, 9, b"\x09", user)
    yield "BAD_FROM_LOGIN", damaged(good, from_at, b"\x00", user)
    yield "BAD_FROM_LOGIN", damaged(good, from_at, b"\x1f", user)
    yield "BAD_FROM_LOGIN", damaged(good, from_at + 1, b"|", user)
    yield "BAD_TO_LOGIN", damaged(good, to_at + 1, b"A", user)
    yield "BAD_LENGTH", good[:-1]
    yield "BAD_LENGTH", good + b"\0"
    yield "BAD_LENGTH", good[:60]
    yield "BODY_TOO_LARGE", damaged(good, body_at, struct.pack(">I", 2**20 + 1), user)
    yield "BODY_TOO_LARGE", damaged(good, body_at, b"\xff\xff\xff\xff", user)
    yield "BAD_BODY", signed(user, to, 1, body=b"")
    yield "BAD_TIME", signed(user, to, 1, time_ms=2**53)
    yield "BAD_TIME", signed(user, to, 1, revision_time_ms=2**64 - 1)


async def test_blobs_that_are_no_containers(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    good_in, good_out = signed(alice, carol, 1), signed(alice, carol, 2)
    for code, blob in bad_blobs(alice, carol):
        for payload in (pair_payload(blob, good_out), pair_payload(good_in, blob)):
            e = await refused(c, "SendMessagePair", payload)
            assert (e.status, e.error) == (400, "BAD_BLOB"), (code, e)
            assert e.message.startswith(code), (code, e)
        e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(blob)})
        assert (e.status, e.error) == (400, "BAD_BLOB"), (code, e)
        assert e.message.startswith(code), (code, e)


async def test_fields(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    good = pair_payload(*alice.pair(carol))
    for name in good:
        whole = good[name]
        for value in (None, 5, "", "*", "a", "YQ==YQ==", whole + "=", whole[:-4] + "\n", [1]):
            e = await refused(c, "SendMessagePair", {**good, name: value})
            assert (e.status, e.error) == (400, "BAD_FIELDS"), (name, value)
        missing = {k: v for k, v in good.items() if k != name}
        assert (await refused(c, "SendMessagePair", missing)).error == "BAD_FIELDS"
    e = await refused(c, "ReceiveIncomingMessage", {})
    assert (e.status, e.error) == (400, "BAD_FIELDS")
    blob = good["incomingBlobB64"]
    e = await refused(
        c, "ReceiveIncomingMessage", {"incomingBlobB64": blob, "sourceServerLogin": 1}
    )
    assert (e.status, e.error) == (400, "BAD_FIELDS")


async def test_copies_that_are_no_pair(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    dora = await net.user("dora", alpha)
    alpha.before = alpha.value(STORED)
    stamp = now_ms()
    one = {"time_ms": stamp}
    mismatches = [
        (signed(alice, carol, 1, **one), signed(alice, dora, 2, **one)),
        (signed(alice, carol, 1, **one), signed(dora, carol, 2, **one)),
        (signed(alice, carol, 1, **one), signed(alice, carol, 2, time_ms=stamp + 1)),
        (signed(alice, carol, 1, **one), signed(alice, carol, 2, nonce=6, **one)),
        (signed(alice, carol, 1, **one), signed(alice, carol, 2, revision_time_ms=5, **one)),
        (signed(alice, carol, 2, **one), signed(alice, carol, 1, **one)),
        (signed(alice, carol, 1, **one), signed(alice, carol, 1, **one)),
        (signed(alice, carol, 2, **one), signed(alice, carol, 2, **one)),
    ]
    for incoming, outgoing in mismatches:
        e = await refused(c, "SendMessagePair", pair_payload(incoming, outgoing))
        assert e.status == 400 and e.error in ("PAIR_MISMATCH", "BAD_MESSAGE_TYPE"), e
    types = {"BAD_MESSAGE_TYPE"}
    ref = (stamp, 5)
    receipts = dm.receipt_pair(alice.login, carol.login, alice.key, ref)
    tombstone = dm.delete(alice.login, carol.login, alice.key, ref)
    e = await refused(c, "SendMessagePair", pair_payload(tombstone, tombstone))
    assert (e.status, {e.error}) == (400, types)
    for blob in (signed(alice, carol, 2), receipts[1], tombstone):
        e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(blob)})
        assert (e.status, {e.error}) == (400, types)


async def test_signatures(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    forger = User(alice.login, [], SigningKey.generate())
    stamps = {"time_ms": 5000, "nonce": 1}
    good, forged = alice.pair(carol, **stamps), forger.pair(carol, **stamps)
    flipped = good[0][:-1] + bytes((good[0][-1] ^ 1,))
    for incoming, outgoing in (
        (forged[0], forged[1]),
        (good[0], forged[1]),
        (forged[0], good[1]),
        (flipped, good[1]),
        (good[0][: -dm.SIG_BYTES] + b"\0" * dm.SIG_BYTES, good[1]),
    ):
        e = await refused(c, "SendMessagePair", pair_payload(incoming, outgoing))
        assert (e.status, e.error) == (422, "BAD_SIGNATURE")
    for blob in (forged[0], flipped):
        e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(blob)})
        assert (e.status, e.error) == (422, "BAD_SIGNATURE")


async def test_users_that_nobody_knows(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    nobody = User("nobody_at_all", [])
    for sender, recipient in ((nobody, carol), (alice, nobody), (nobody, nobody)):
        pair = sender.pair(recipient)
        e = await refused(c, "SendMessagePair", pair_payload(*pair))
        assert (e.status, e.error) == (404, "USER_NOT_FOUND")
    e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(nobody.pair(carol)[0])})
    assert (e.status, e.error) == (404, "USER_NOT_FOUND")


async def test_users_of_other_servers(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    elsewhere = [("gamma", "wss://gamma.example/ws")]
    guest = await net.user("guest", known_to=(alpha,), urls=elsewhere)
    alpha.before = alpha.value(STORED)
    e = await refused(c, "SendMessagePair", pair_payload(*guest.pair(carol)))
    assert (e.status, e.error) == (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")
    e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(alice.pair(guest)[0])})
    assert (e.status, e.error) == (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")


async def test_bodies_above_the_clients_bound(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    large, small = b"x" * 65537, b"x" * 65536
    stamps = {"time_ms": now_ms(), "nonce": 3}
    big, fine = alice.pair(carol, large, **stamps), alice.pair(carol, small, **stamps)
    for pair in (big, (big[0], fine[1]), (fine[0], big[1])):
        e = await refused(c, "SendMessagePair", pair_payload(*pair))
        assert (e.status, e.error) == (413, "PAYLOAD_TOO_LARGE")


async def test_times_ahead_of_the_clock(alpha, net, nothing_stored):
    alice, carol, c = await trio(alpha, net)
    ahead = alpha.now_ms() + 16 * 60_000
    for stamps in (
        {"time_ms": ahead},
        {"time_ms": 1, "revision": ahead},
        {"time_ms": 1, "reencrypted": ahead},
        {"time_ms": 2**53 - 1},
    ):
        e = await refused(c, "SendMessagePair", pair_payload(*alice.pair(carol, **stamps)))
        assert (e.status, e.error) == (400, "BAD_BLOB") and e.message.startswith("BAD_TIME")


async def test_the_databases_clock_judges_message_times(alpha, net):
    alice, carol, c = await trio(alpha, net)
    pair = alice.pair(carol, time_ms=alpha.now_ms() + 16 * 60_000)
    assert (await refused(c, "SendMessagePair", pair_payload(*pair))).error == "BAD_BLOB"
    alpha.move_clock(5 * 60_000)
    try:
        assert (await c.send_pair(*pair))["deliveryState"] == "delivered"
    finally:
        alpha.move_clock(0)


async def test_one_bad_pair_does_not_harm_its_neighbours(alpha, net):
    alice, carol, c = await trio(alpha, net)
    nobody = User("nobody_at_all", [])
    pairs = [(nobody if n % 5 == 2 else alice).pair(carol, str(n)) for n in range(50)]
    pending = [c.start("SendMessagePair", pair_payload(*p)) for p in pairs]
    answers = [await p for p in pending]
    assert [n for n, a in enumerate(answers) if not a.ok] == list(range(2, 50, 5))
    assert {a.error for a in answers if not a.ok} == {"USER_NOT_FOUND"}
