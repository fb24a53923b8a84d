"""Everything DeleteMessage and DeleteConversation refuse. Nothing of it is stored."""

import shine_dm as dm
from example_client import b64, pair_payload
from support.net import User
from support.refusals import code, content, refused

REF = (1_774_700_000_000, 5)
OPS = ("DeleteMessage", "DeleteConversation")


def message(user, other, **options):
    return dm.delete(user.login, other.login, user.key, REF, **options)


def conversation(user, other, until=1, **options):
    return dm.clear(user.login, other.login, user.key, until, **options)


def signed(user, other, kind, body, **fields):
    """A tombstone with any body, wrong ones included."""
    c = dm.Container(kind, user.login, other.login, 7000, 5, body=body, **fields)
    return dm.sign(dm.encode(c), user.key)


async def trio(alpha, net):
    alice, bob = await net.user("alice", alpha), await net.user("bob", alpha)
    c = await net.connect(alpha)
    await c.send_pair(*alice.pair(bob, "stays", time_ms=REF[0], nonce=REF[1]))
    return alice, bob, c


async def test_fields(alpha, net):
    alice, bob, c = await trio(alpha, net)
    before = content(alpha)
    for op, blob in zip(OPS, (message(alice, bob), conversation(alice, bob))):
        whole = b64(blob)
        for value in (None, 5, "", "*", "a", [1], {}, whole + "=", whole[:-4] + "\n"):
            assert code(await refused(c, op, {"blobB64": value})) == (400, "BAD_FIELDS"), value
        assert code(await refused(c, op, {})) == (400, "BAD_FIELDS")
        e = await refused(c, op, {"blobB64": whole, "sourceServerLogin": 1})
        assert code(e) == (400, "BAD_FIELDS")
    assert content(alpha) == before


async def test_types_of_other_operations(alpha, net):
    alice, bob, c = await trio(alpha, net)
    before = content(alpha)
    text = alice.pair(bob)
    receipt = dm.receipt_pair(alice.login, bob.login, alice.key, REF)
    messages = [message(alice, bob, for_both=both) for both in (True, False)]
    conversations = [conversation(alice, bob, for_both=both) for both in (True, False)]
    for op, wrong in zip(OPS, (conversations, messages)):
        for blob in (*wrong, *text, *receipt):
            e = await refused(c, op, {"blobB64": b64(blob)})
            assert code(e) == (400, "BAD_MESSAGE_TYPE")
    for blob in (*messages, *conversations):
        for pair in ((blob, blob), (text[0], blob), (blob, text[1])):
            e = await refused(c, "SendMessagePair", pair_payload(*pair))
            assert code(e) == (400, "BAD_MESSAGE_TYPE")
        e = await refused(c, "ReceiveIncomingMessage", {"incomingBlobB64": b64(blob)})
        assert code(e) == (400, "BAD_MESSAGE_TYPE")
    assert content(alpha) == before


async def test_blobs_that_are_no_tombstones(alpha, net):
    alice, bob, c = await trio(alpha, net)
    before = content(alpha)
    delete, clear = dm._DELETE.pack(1, 0, *REF), dm._CLEAR.pack(1, 7000)
    both = {5: "DeleteMessage", 6: "DeleteMessage", 7: "DeleteConversation"}
    both[8] = "DeleteConversation"
    cases = [("BAD_BODY", kind, body) for kind in both for body in (b"", delete + clear)]
    cases += [("BAD_BODY", 5, b"\x02" + delete[1:]), ("BAD_BODY", 6, b"\1\2" + delete[2:])]
    cases += [("BAD_BODY", 7, b"\0" + clear[1:]), ("BAD_BODY", 5, clear), ("BAD_BODY", 8, delete)]
    cases += [("BAD_TIME", 7, dm._CLEAR.pack(1, 7001)), ("BAD_TIME", 8, dm._CLEAR.pack(1, 2**63))]
    for reason, kind, body in cases:
        e = await refused(c, both[kind], {"blobB64": b64(signed(alice, bob, kind, body))})
        assert code(e) == (400, "BAD_BLOB") and e.message.startswith(reason), (kind, body, e)
    for stamp in ("revision_time_ms", "reencrypted_at_ms"):  # tombstones have no revisions
        for kind, body in ((5, delete), (7, clear)):
            blob = signed(alice, bob, kind, body, **{stamp: 1})
            e = await refused(c, both[kind], {"blobB64": b64(blob)})
            assert code(e) == (400, "BAD_BLOB") and e.message.startswith("BAD_TIME")
    e = await refused(c, "DeleteMessage", {"blobB64": b64(b"garbage")})
    assert code(e) == (400, "BAD_BLOB") and e.message.startswith("BAD_LENGTH")
    assert content(alpha) == before


async def test_times_ahead_of_the_clock(alpha, net):
    """A little ahead is a clock that is off; deleting what is still to come is never allowed."""
    alice, bob, c = await trio(alpha, net)
    before = content(alpha)
    minute, now = 60_000, alpha.now_ms()
    still_to_come = conversation(alice, bob, now + 5 * minute, time_ms=now + 6 * minute)
    for op, blob in (
        ("DeleteMessage", message(alice, bob, time_ms=now + 16 * minute)),
        ("DeleteConversation", conversation(alice, bob, time_ms=now + 16 * minute)),
        ("DeleteConversation", still_to_come),
        ("DeleteConversation",
         conversation(alice, bob, now + minute, time_ms=now + minute, for_both=False)),
    ):
        e = await refused(c, op, {"blobB64": b64(blob)})
        assert code(e) == (400, "BAD_BLOB") and e.message.startswith("BAD_TIME"), op
    assert content(alpha) == before
    fine = conversation(alice, bob, until=1, time_ms=now + 5 * minute)
    await c.call("DeleteConversation", {"blobB64": b64(fine)})


async def test_signatures_and_users(alpha, net):
    alice, bob, c = await trio(alpha, net)
    elsewhere = [("gamma", "wss://127.0.0.1:1/ws")]
    guest = await net.user("guest", known_to=(alpha,), urls=elsewhere)
    other_guest = await net.user("guest", known_to=(alpha,), urls=elsewhere)
    nobody, forger = User("nobody_at_all", []), User(alice.login, [])
    before = content(alpha)
    for op, make in zip(OPS, (message, conversation)):
        good = make(alice, bob)
        for error, blob in (
            ((422, "BAD_SIGNATURE"), make(forger, bob)),
            ((422, "BAD_SIGNATURE"), good[:-1] + bytes((good[-1] ^ 1,))),
            ((404, "USER_NOT_FOUND"), make(nobody, bob)),
            ((404, "USER_NOT_FOUND"), make(alice, nobody)),
            ((403, "LOCAL_SERVER_NOT_ACCESS_SERVER"), make(guest, other_guest)),
            # For oneself only one's own servers count.
            ((403, "LOCAL_SERVER_NOT_ACCESS_SERVER"), make(guest, alice, for_both=False)),
            ((403, "LOCAL_SERVER_NOT_ACCESS_SERVER"), make(guest, guest, for_both=False)),
        ):
            e = await refused(c, op, {"blobB64": b64(blob)})
            assert code(e) == error, (op, e)
    assert content(alpha) == before
