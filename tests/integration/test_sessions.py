"""Log-ins: challenges, signatures, clocks, sessions that move between connections."""

import pytest
from nacl.signing import SigningKey
from example_client import (
    ShineError,
    b64,
    create_session_payload,
    now_ms,
    session_login_payload,
)
from support.waiting import eventually


async def refused(client, op, payload):
    with pytest.raises(ShineError) as e:
        await client.call(op, payload)
    return e.value.status, e.value.error


async def challenge(client, user):
    return (await client.call("AuthChallenge", {"login": user.login}))["authNonce"]


async def creation(client, user, **changes):
    """A CreateAuthSession that would succeed, but for `changes`."""
    options = {"session_key": SigningKey.generate(), "key": user.key, **changes}
    return create_session_payload(user.login, nonce=await challenge(client, user), **options)


def connected(server, session_id):
    query = "SELECT connected_to FROM active_sessions WHERE session_id = %s"
    return server.value(query, [session_id])


async def test_a_device_logs_in_again_with_its_own_key(alpha, net):
    alice = await net.user("alice", alpha)
    c = await net.connect(alpha)
    device = SigningKey.generate()
    made = await c.create_session(alice.login, alice.key, device, storage_pwd="s3crét")
    assert made["lastPts"] == 0 and isinstance(made["epoch"], int)
    assert len(made["sessionId"]) == 43
    assert (await c.call("GetDirectMessages", {"withLogin": "bob"}))["items"] == []
    await c.close()
    await eventually(lambda: not connected(alpha, made["sessionId"]), "the session to be free")

    again = await net.connect(alpha)
    answer = await again.session_login(made["sessionId"], device)
    assert answer["login"] == alice.login and answer["storagePwd"] == "s3crét"
    assert answer["lastPts"] == 0 and answer["ackedPts"] == 0 and answer["epoch"] == made["epoch"]
    assert connected(alpha, made["sessionId"])


async def test_nothing_is_open_before_the_log_in(alpha, net):
    c = await net.connect(alpha)
    ask = {"withLogin": "bob"}
    assert await refused(c, "GetDirectMessages", ask) == (401, "NOT_AUTHENTICATED")


async def test_challenges_only_for_those_who_exist(alpha, net):
    c = await net.connect(alpha)
    assert await refused(c, "AuthChallenge", {"login": "nobody_here"}) == (422, "UNKNOWN_USER")
    assert await refused(c, "AuthChallenge", {}) == (400, "BAD_FIELDS")
    assert await refused(c, "SessionChallenge", {"sessionId": "x" * 43}) == (
        422,
        "SESSION_NOT_FOUND",
    )
    assert await refused(c, "SessionChallenge", {"sessionId": 1}) == (400, "BAD_FIELDS")


async def test_a_nonce_can_be_used_once_and_on_its_connection(alpha, net):
    alice = await net.user("alice", alpha)
    c, other = await net.connect(alpha), await net.connect(alpha)
    payload = await creation(c, alice)
    mismatch = (400, "AUTH_NONCE_MISMATCH")
    assert await refused(other, "CreateAuthSession", payload) == mismatch
    await c.call("CreateAuthSession", payload)
    assert await refused(c, "CreateAuthSession", payload) == mismatch
    own = create_session_payload(alice.login, alice.key, SigningKey.generate(), b64(b"n" * 32))
    assert await refused(other, "CreateAuthSession", own) == mismatch


async def test_a_refused_log_in_uses_the_nonce_up(alpha, net):
    alice = await net.user("alice", alpha)
    c = await net.connect(alpha)
    payload = await creation(c, alice)
    bad = {**payload, "signatureB64": b64(b"s" * 64)}
    assert await refused(c, "CreateAuthSession", bad) == (422, "BAD_SIGNATURE")
    assert await refused(c, "CreateAuthSession", payload) == (400, "AUTH_NONCE_MISMATCH")


async def test_a_nonce_belongs_to_the_login_it_was_asked_for(alpha, net):
    alice, mallory = await net.user("alice", alpha), await net.user("mallory", alpha)
    c = await net.connect(alpha)
    nonce = await challenge(c, alice)
    payload = create_session_payload(mallory.login, mallory.key, SigningKey.generate(), nonce)
    assert await refused(c, "CreateAuthSession", payload) == (400, "AUTH_NONCE_MISMATCH")


async def test_clock_skew(alpha, net):
    alice = await net.user("alice", alpha)
    c = await net.connect(alpha)
    for minutes in (-6, 6, -1440, 1440):
        payload = await creation(c, alice, time_ms=now_ms() + minutes * 60_000)
        assert await refused(c, "CreateAuthSession", payload) == (400, "TIME_SKEW")
    for time_ms in (0, 2**53 - 1):
        payload = await creation(c, alice, time_ms=time_ms)
        assert await refused(c, "CreateAuthSession", payload) == (400, "TIME_SKEW")
    for minutes in (-4, 4):
        payload = await creation(c, alice, time_ms=now_ms() + minutes * 60_000)
        await c.call("CreateAuthSession", payload)


async def test_the_databases_clock_does_not_judge_log_ins(world, alpha, net):
    alice = await net.user("alice", alpha)
    alpha.move_clock(3_600_000)
    try:
        await net.session(alice)
    finally:
        alpha.move_clock(0)


async def test_another_key_is_not_actual(alpha, net):
    alice = await net.user("alice", alpha)
    c = await net.connect(alpha)
    payload = await creation(c, alice, key=SigningKey.generate())
    assert await refused(c, "CreateAuthSession", payload) == (422, "CLIENT_KEY_NOT_ACTUAL")


SIGNED_FIELDS = {
    "storagePwd": "other",
    "sessionKey": "ed25519/" + b64(b"k" * 32),
    "timeMs": None,
}


@pytest.mark.parametrize("field", SIGNED_FIELDS)
async def test_every_signed_field_is_covered(alpha, net, field):
    alice = await net.user("alice", alpha)
    c = await net.connect(alpha)
    payload = await creation(c, alice)
    payload[field] = SIGNED_FIELDS[field] or payload["timeMs"] + 1
    assert await refused(c, "CreateAuthSession", payload) == (422, "BAD_SIGNATURE")


BAD_FIELDS = [
    ("storagePwd", "a:b", "BAD_FIELDS"),
    ("storagePwd", 5, "BAD_FIELDS"),
    ("sessionKey", b64(b"k" * 32), "BAD_KEY_FORMAT"),
    ("sessionKey", "ed25519/" + b64(b"k" * 31), "BAD_KEY_FORMAT"),
    ("clientKey", "?", "BAD_KEY_FORMAT"),
    ("timeMs", "1", "BAD_FIELDS"),
    ("eventMode", "sometimes", "BAD_FIELDS"),
    ("signatureB64", "*", "BAD_FIELDS"),
    ("clientInfo", "x" * 5000, "BAD_FIELDS"),
]


@pytest.mark.parametrize("field,value,error", BAD_FIELDS)
async def test_fields_of_a_wrong_form(alpha, net, field, value, error):
    alice = await net.user("alice", alpha)
    c = await net.connect(alpha)
    payload = {**await creation(c, alice), field: value}
    assert await refused(c, "CreateAuthSession", payload) == (400, error)
    assert (await c.call("Ping", {"ts": 1})) == {"ts": 1}


async def test_session_login_is_bound_to_key_nonce_and_session(alpha, net):
    alice = await net.user("alice", alpha)
    first = await net.session(alice)
    second = await net.session(alice)
    c = await net.connect(alpha)

    async def attempt(key=first.session_key, changes=(), time_ms=None):
        asked = await c.call("SessionChallenge", {"sessionId": first.session_id})
        payload = session_login_payload(first.session_id, key, asked["nonce"], time_ms)
        return await refused(c, "SessionLogin", {**payload, **dict(changes)})

    assert await attempt(changes={"signatureB64": b64(b"s" * 64)}) == (422, "BAD_SIGNATURE")
    assert (await attempt(key=second.session_key))[0] == 422
    wrong_session = {"sessionId": second.session_id}
    assert await attempt(changes=wrong_session) == (400, "AUTH_NONCE_MISMATCH")
    for minutes in (-6, 6):
        assert await attempt(time_ms=now_ms() + minutes * 60_000) == (400, "TIME_SKEW")
    assert c.login is None and first.closed is None

    asked = await c.call("SessionChallenge", {"sessionId": first.session_id})
    good = session_login_payload(first.session_id, first.session_key, asked["nonce"])
    assert (await c.call("SessionLogin", good))["login"] == alice.login
    assert await refused(c, "SessionLogin", good) == (400, "AUTH_NONCE_MISMATCH")


async def test_a_second_connection_takes_the_session_over(alpha, net):
    alice = await net.user("alice", alpha)
    first = await net.session(alice)
    for _ in range(6):  # the same worker, and another one
        second = await net.connect(alpha)
        await second.session_login(first.session_id, first.session_key, alice.key)
        assert (await first.wait_closed()).code == 4001
        assert await second.call("Ping", {"ts": 1}) == {"ts": 1}
        first = second
    answer = await first.send_text(alice.login, "still here")
    assert (await first.wait_event("IncomingDirectMessage"))["messageKey"] == answer["incomingKey"]


async def test_sessions_per_user_are_bounded(world, net):
    server = world.server("narrow", limits__sessionsPerUser=3)
    alice = await net.user("alice", server)
    for _ in range(3):
        await net.session(alice)
    with pytest.raises(ShineError) as e:
        await net.session(alice)
    assert (e.value.status, e.value.error) == (403, "TOO_MANY_SESSIONS")
    await net.close()
    assert server.stop()
