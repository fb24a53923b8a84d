"""AddUser and GetUser."""

import pytest
from nacl.signing import SigningKey
from example_client import ShineError, add_user_payload, b64, now_ms, public_b64, sign_text

HOME = [("alpha", "wss://alpha.example/ws")]
_taken = iter(range(10**6))


def login():
    return f"acct_{next(_taken)}"


async def refused(client, op, payload):
    with pytest.raises(ShineError) as e:
        await client.call(op, payload)
    return e.value.status, e.value.error


async def test_added_users_are_shown_to_everybody(alpha, net):
    c = await net.connect(alpha)
    name, key = login(), SigningKey.generate()
    assert await c.call("GetUser", {"login": name}) == {"exists": False}
    servers = [("alpha", "wss://alpha.example/ws"), ("b-2.x_y", "wss://[::1]:8443/ws")]
    assert await c.add_user(name, key, servers) == {}
    user = await (await net.connect(alpha)).call("GetUser", {"login": name})
    assert user["exists"] is True and user["login"] == name
    assert user["clientKey"] == public_b64(key)
    assert user["accessServers"] == [{"serverLogin": s, "url": u} for s, u in servers]


async def test_repeating_is_a_success_and_changes_nothing(alpha, net):
    c = await net.connect(alpha)
    name, key = login(), SigningKey.generate()
    await c.add_user(name, key, HOME)
    before = await c.call("GetUser", {"login": name})
    assert await c.add_user(name, key, [("other", "wss://other.example/ws")]) == {}
    assert await c.call("GetUser", {"login": name}) == before
    other = add_user_payload(name, SigningKey.generate(), HOME)
    assert await refused(c, "AddUser", other) == (409, "USER_ALREADY_EXISTS")
    assert await c.call("GetUser", {"login": name}) == before


async def test_base64_without_padding_is_signed_as_it_was_sent(alpha, net):
    c = await net.connect(alpha)
    name, key = login(), SigningKey.generate()
    bare, stamp = public_b64(key).rstrip("="), now_ms()
    payload = {
        **add_user_payload(name, key, HOME),
        "clientKey": bare,
        "timeMs": stamp,
        "signatureB64": sign_text(key, f"SHiNE_ADD_USER:{name}:{bare}:{stamp}"),
    }
    assert await c.call("AddUser", payload) == {}
    assert (await c.call("GetUser", {"login": name}))["clientKey"] == public_b64(key)


@pytest.mark.parametrize("bad", ["A", "Ünïcode", "with space", "x" * 31, "a|b", "a-b", "a\nb"])
async def test_bad_logins(alpha, net, bad):
    c = await net.connect(alpha)
    payload = add_user_payload(bad, SigningKey.generate(), HOME)
    assert await refused(c, "AddUser", payload) == (400, "BAD_LOGIN")


async def test_logins_of_every_allowed_form(alpha, net):
    c = await net.connect(alpha)
    for name in (f"_{next(_taken)}", f"{next(_taken):030}", f"a{next(_taken)}_z"):
        assert await c.add_user(name, SigningKey.generate(), HOME) == {}


@pytest.mark.parametrize("bad", ["x", b64(b"k" * 31), b64(b"k" * 33), "ed25519/" + b64(b"k" * 32)])
async def test_bad_keys(alpha, net, bad):
    c = await net.connect(alpha)
    payload = {**add_user_payload(login(), SigningKey.generate(), HOME), "clientKey": bad}
    assert await refused(c, "AddUser", payload) == (400, "BAD_KEY_FORMAT")


SERVERS = [
    ([], "BAD_FIELDS"),
    ([(f"s{n}", f"wss://s{n}.example/ws") for n in range(3)], "TOO_MANY_ACCESS_SERVERS"),
    ([("alpha", "http://alpha.example/ws")], "BAD_FIELDS"),
    ([("alpha", "wss://alpha.example/" + "x" * 255)], "BAD_FIELDS"),
    ([("alpha", "wss://al pha.example/")], "BAD_FIELDS"),
    ([("Alpha", "wss://alpha.example/ws")], "BAD_FIELDS"),
    ([("a" * 64, "wss://alpha.example/ws")], "BAD_FIELDS"),
    ([("alpha", "wss://a.example/ws"), ("alpha", "wss://b.example/ws")], "BAD_FIELDS"),
]


@pytest.mark.parametrize("servers,error", SERVERS)
async def test_bad_access_servers(alpha, net, servers, error):
    c = await net.connect(alpha)
    name = login()
    payload = add_user_payload(name, SigningKey.generate(), servers)
    assert await refused(c, "AddUser", payload) == (400, error)
    assert await c.call("GetUser", {"login": name}) == {"exists": False}


async def test_the_signature_is_asked_for_and_checked(alpha, net):
    c = await net.connect(alpha)
    key, name = SigningKey.generate(), login()
    payload = add_user_payload(name, key, HOME)
    bare = {k: v for k, v in payload.items() if k not in ("timeMs", "signatureB64")}
    assert await refused(c, "AddUser", bare) == (400, "BAD_FIELDS")
    stolen = {**payload, "login": login()}
    assert await refused(c, "AddUser", stolen) == (422, "BAD_SIGNATURE")
    later = {**payload, "timeMs": payload["timeMs"] + 1}
    assert await refused(c, "AddUser", later) == (422, "BAD_SIGNATURE")
    for minutes in (-6, 6):
        skewed = add_user_payload(name, key, HOME, now_ms() + minutes * 60_000)
        assert await refused(c, "AddUser", skewed) == (400, "TIME_SKEW")
    for minutes in (-4, 4):
        fine = add_user_payload(login(), key, HOME, now_ms() + minutes * 60_000)
        assert await c.call("AddUser", fine) == {}


WRONG_TYPES = [
    ("login", None),
    ("login", 5),
    ("clientKey", []),
    ("accessServers", {}),
    ("accessServers", ["alpha"]),
    ("accessServers", [{"serverLogin": "alpha"}]),
    ("accessServers", [{"serverLogin": "alpha", "url": 5}]),
    ("timeMs", "1774700000123"),
    ("signatureB64", 1),
]


@pytest.mark.parametrize("field,value", WRONG_TYPES)
async def test_fields_of_the_wrong_type(alpha, net, field, value):
    c = await net.connect(alpha)
    payload = {**add_user_payload(login(), SigningKey.generate(), HOME), field: value}
    if value is None:
        del payload[field]
    assert await refused(c, "AddUser", payload) == (400, "BAD_FIELDS")


async def test_add_user_can_be_switched_off(world, net):
    server = world.server("closed", directory__addUser="off")
    c = await net.connect(server)
    payload = add_user_payload(login(), SigningKey.generate(), HOME)
    assert await refused(c, "AddUser", payload) == (403, "ADD_USER_DISABLED")
    assert await refused(c, "GetUser", {}) == (400, "BAD_FIELDS")
    assert await c.call("GetUser", {"login": "nobody"}) == {"exists": False}
    await c.close()
    assert server.stop()
