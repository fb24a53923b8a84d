"""DmSyncBatch, UserSettingsSyncBatch, GetDmDeliveryStatuses: an independent client acts as the second
server of an owner."""

import asyncio
import hashlib

import pytest
import shine_dm
from example_client import ShineError, now_ms, pair_payload, public_b64, setting_payload, unb64
from nacl.signing import SigningKey
from support.refusals import code, refused

TWIN = "twin"
TWIN_URL = "wss://127.0.0.1:9/ws"  # nobody answers there


@pytest.fixture(scope="module")
def home(world):
    return world.server("home", delivery__firstReplyBudgetMs=100)


@pytest.fixture
def spare(world):
    """Makes a server for one test."""
    made = []

    def make(login, **settings):
        made.append(world.server(login, frontd__workers=1, **settings))
        return made[-1]

    yield make
    for server in made:
        server.stop()
        server.forget_connection()


async def owner(net, server, name="alice", twin=TWIN):
    return await net.user(name, server, urls=[(twin, TWIN_URL)])


async def second_server(net, server, login=TWIN):
    client = await net.connect(server)
    hello = {"serverLogin": login, "protocolVersion": 1, "capabilities": ["dm-sync"]}
    answer = await client.call("ServerHello", hello)
    assert {"dm-sync", "settings-sync", "dm-status-batch"} <= set(answer["capabilities"])
    return client


async def patiently(client, op, payload):
    """A server that has just started, or is busy with other pages, asks for a moment."""
    while True:
        try:
            return await client.call(op, payload)
        except ShineError as e:
            if e.status != 503:
                raise
            await asyncio.sleep(e.payload["retryAfterMs"] / 1000)


async def batch(client, user, **ask):
    return await patiently(client, "DmSyncBatch", {"ownerLogin": user.login, **ask})


def cursor(page):
    return {"afterStoredAtMs": page["nextStoredAtMs"], "afterMessageKey": page["nextMessageKey"]}


def keys(page):
    return [item["primaryMessageKey"] for item in page["items"]]


def ids(page):
    return [item["syncId"] for item in page["items"]]


async def sent_in_order(client, to, texts, **stamps):
    """Send one after the other, so that the order of storing is known."""
    return [await client.send_text(to.login, text, **stamps) for text in texts]


# ---- pages ----


async def test_items_carry_the_blobs_and_their_name(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    a, b, twin = await net.session(alice), await net.session(bob), await second_server(net, home)
    pair = alice.pair(bob, "hello")
    sent = await a.send_pair(*pair)
    reply = bob.pair(alice, "hi")
    received = await b.send_pair(*reply)
    gone = await a.delete_message((await b.wait_event("IncomingDirectMessage")).payload, False)
    page = await batch(twin, alice)
    assert keys(page) == [sent["outgoingKey"], received["incomingKey"], gone["outgoingKey"]][1:]
    # The author deleted her own copy: what is left of the pair is nobody's item any more.
    item, tombstone = page["items"]
    assert set(item) == {"syncId", "primaryMessageKey", "storedAtMs", "blobsB64"}
    assert [unb64(x) for x in item["blobsB64"]] == [reply[0]]
    digest = hashlib.sha256(reply[0]).hexdigest()[:16]
    assert item["syncId"] == f"{received['incomingKey']}:0:0:{digest}"
    assert shine_dm.parse(unb64(tombstone["blobsB64"][0])).type == 6
    assert page["hasMore"] is False and set(page) == {
        "items", "nextStoredAtMs", "nextMessageKey", "hasMore"}  # fmt: skip
    assert page["nextStoredAtMs"] == tombstone["storedAtMs"]
    assert await batch(twin, alice, **cursor(page)) == {**page, "items": []}  # the cursor stays
    edit = alice.pair(bob, "edited", time_ms=5, nonce=5, revision=6)
    await a.send_pair(*edit)
    item = (await batch(twin, alice, **cursor(page)))["items"][0]
    assert [unb64(x) for x in item["blobsB64"]] == list(edit)
    digest = hashlib.sha256(edit[0] + edit[1]).hexdigest()[:16]
    assert item["syncId"] == f"{alice.login}|{bob.login}|5|5|2:6:0:{digest}"


async def test_limits_of_items(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    a, twin = await net.session(alice), await second_server(net, home)
    sent = [s["outgoingKey"] for s in await sent_in_order(a, bob, "abcdef")]
    for limit in (5, 6, 7, 500, 501, 2**53 - 1):
        page = await batch(twin, alice, limit=limit)
        assert sorted(keys(page)) == sorted(sent[:limit]) or limit == 5
        assert len(page["items"]) == min(limit, 6) and page["hasMore"] is (limit < 6)
    got, page, rounds = [], {"nextStoredAtMs": 0, "nextMessageKey": "", "hasMore": True}, 0
    while page["hasMore"]:
        page = await batch(twin, alice, limit=1, **cursor(page))
        got += keys(page)
        rounds += 1
    assert sorted(got) == sorted(sent) and rounds == 6  # a page of one item is not the end
    order = [(i["storedAtMs"], i["primaryMessageKey"]) for i in (await batch(twin, alice))["items"]]
    assert order == sorted(order) and [key for _, key in order] == got
    for wrong in ({"limit": 0}, {"limit": "5"}, {"maxBytes": 0}, {"afterStoredAtMs": -1}):
        error = await refused(twin, "DmSyncBatch", {"ownerLogin": alice.login, **wrong})
        assert code(error) == (400, "BAD_FIELDS")


async def test_limits_of_bytes(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    a, twin = await net.session(alice), await second_server(net, home)
    pairs = [alice.pair(bob, "x" * 50_000) for _ in range(3)]
    for pair in pairs:
        await a.send_pair(*pair)
    (size,) = {len(i) + len(o) for i, o in pairs}
    for most, items in ((1, 1), (size - 1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2),
                        (2 * size + 1, 2), (3 * size, 3), (2**53 - 1, 3)):  # fmt: skip
        page = await batch(twin, alice, maxBytes=most)
        assert len(page["items"]) == items and page["hasMore"] is (items < 3)


async def test_the_largest_items_fill_a_frame(home, net):
    """Servers may store bodies of 1 MiB; a page is at most 3,000,000 bytes or one item."""
    alice, bob = await owner(net, home), await net.user("bob", home)
    twin = await second_server(net, home)
    pairs = [alice.pair(bob, b"\0" + bytes(1_048_575), nonce=n) for n in range(2)]
    for pair in pairs:
        # The receipt of a server: no rule for clients. It is the source, so nothing is unsynced.
        await twin.call("ReceiveOutcomingMessage", pair_payload(*pair))
    home.rows("UPDATE dm_sync_outbox SET synced = false WHERE owner_login = %s", [alice.login])
    page = await batch(twin, alice)
    assert [unb64(x) for x in page["items"][0]["blobsB64"]] == list(pairs[0])
    assert len(page["items"]) == 1 and page["hasMore"]
    # Many pages asked for at once, on one connection and not read meanwhile.
    pages = [twin.start("DmSyncBatch", {"ownerLogin": alice.login}) for _ in range(6)]
    answers = await asyncio.gather(*pages)
    assert all(answer.ok or answer.error == "OVERLOADED" for answer in answers)
    small = [alice.pair(bob, "x" * 4000, nonce=100 + n) for n in range(500)]
    await asyncio.gather(
        *(twin.call("ReceiveOutcomingMessage", pair_payload(*pair)) for pair in small)
    )
    home.rows(
        "UPDATE dm_sync_outbox SET synced = length(primary_message_key) < 1"
        " WHERE owner_login = %s AND primary_message_key NOT LIKE '%%|_|2'", [alice.login])  # fmt: skip
    page = await batch(twin, alice, ackSyncIds=ids(page))
    blobs = sum(len(unb64(x)) for item in page["items"] for x in item["blobsB64"])
    assert blobs <= 3_000_000 and page["hasMore"]


# ---- acknowledgements ----


async def test_acknowledged_items_do_not_come_again(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    a, twin = await net.session(alice), await second_server(net, home)
    sent = await sent_in_order(a, bob, "abcd")
    page = await batch(twin, alice, limit=2)
    first = ids(page)
    rest = await batch(twin, alice, ackSyncIds=first, **cursor(page))
    assert len(rest["items"]) == 2 and rest["hasMore"] is False
    # Twice, unknown, malformed, of another revision: all without effect.
    item = rest["items"][0]
    old = item["syncId"][:-16] + "0" * 16
    unknown = "nobody|knows|1|2|2:0:0:0123456789abcdef"
    page = await batch(
        twin, alice, ackSyncIds=[*first, old, unknown, "", ":", "x" * 5000, "ü", item["primaryMessageKey"]]
    )  # fmt: skip
    assert ids(page) == ids(rest)
    # Between page and acknowledgement the message is edited.
    key = shine_dm.parse_key(sent[2]["outgoingKey"])
    edit = alice.pair(bob, "new", time_ms=key.time_ms, nonce=key.nonce, revision=now_ms())
    await a.send_pair(*edit)
    page = await batch(twin, alice, ackSyncIds=ids(rest))
    assert keys(page) == [sent[2]["outgoingKey"]] and ids(page) != ids(rest)[:1]
    # The last acknowledgement comes in a request of its own.
    assert (await batch(twin, alice, limit=1, ackSyncIds=ids(page)))["items"] == []
    assert (await batch(twin, alice))["items"] == []
    synced = home.rows(
        "SELECT synced, push_due_at_ms, count(*) FROM dm_sync_outbox WHERE owner_login = %s"
        " GROUP BY 1, 2", [alice.login])  # fmt: skip
    assert [dict(row) for row in synced] == [{"synced": True, "push_due_at_ms": None, "count": 4}]


async def test_an_acknowledgement_that_is_lost_is_no_loss(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    a, twin = await net.session(alice), await second_server(net, home)
    await sent_in_order(a, bob, "ab")
    page = await batch(twin, alice)
    await twin.close()
    twin = await second_server(net, home)
    assert await batch(twin, alice) == page
    for wrong in ("x", [1], [None], {"a": 1}, ["x"] * 1001):
        ask = {"ownerLogin": alice.login, "ackSyncIds": wrong}
        assert code(await refused(twin, "DmSyncBatch", ask)) == (400, "BAD_FIELDS")
    assert await batch(twin, alice) == page


async def test_what_the_second_server_brings_is_never_offered_back(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    twin = await second_server(net, home)
    await twin.call("ReceiveOutcomingMessage", pair_payload(*alice.pair(bob)))
    await twin.call("ReceiveIncomingMessage", {
        "incomingBlobB64": pair_payload(*bob.pair(alice))["incomingBlobB64"]})  # fmt: skip
    for _ in range(10):
        assert (await batch(twin, alice))["items"] == []


# ---- who may ask ----


async def test_strangers_are_refused(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    far = await net.user("far", urls=[("elsewhere", TWIN_URL)], known_to=(home,))
    a = await net.session(alice)
    await a.send_text(bob.login, "secret")
    wrong = await second_server(net, home, "elsewhere")
    for op in ("DmSyncBatch", "UserSettingsSyncBatch"):
        for user, want in (
            (alice.login, (403, "PEER_NOT_ACCESS_SERVER")),
            (bob.login, (403, "PEER_NOT_ACCESS_SERVER")),
            (far.login, (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")),
            ("nobody", (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")),
            ("", (400, "EMPTY_OWNER_LOGIN")),
            (None, (400, "EMPTY_OWNER_LOGIN")),
            (7, (400, "BAD_FIELDS")),
        ):
            assert code(await refused(wrong, op, {"ownerLogin": user})) == want
    # An acknowledgement by somebody who may not pull has no effect.
    twin = await second_server(net, home)
    page = await batch(twin, alice)
    await refused(wrong, "DmSyncBatch", {"ownerLogin": alice.login, "ackSyncIds": ids(page)})
    assert await batch(twin, alice) == page


async def test_a_caller_without_hello_is_trusted_while_no_key_is_known(spare, net):
    home = spare("guarded")
    alice = await owner(net, home, twin="legacy.twin")
    bob = await net.user("bob", home)
    a = await net.session(alice)
    await a.send_text(bob.login, "x")
    legacy = await net.connect(home)
    assert len((await batch(legacy, alice))["items"]) == 1
    assert code(await refused(legacy, "DmSyncBatch", {"ownerLogin": bob.login})) == (
        403, "PEER_NOT_ACCESS_SERVER")  # fmt: skip
    home.shinectl("server", "add", "legacy.twin", "--url", TWIN_URL, "--key",
                  public_b64(SigningKey.generate()))  # fmt: skip
    for op in ("DmSyncBatch", "UserSettingsSyncBatch"):
        assert code(await refused(legacy, op, {"ownerLogin": alice.login})) == (
            403, "PEER_NOT_ACCESS_SERVER")  # fmt: skip


async def test_whoever_must_prove_themselves_may_not_stay_anonymous(spare, net):
    strict = spare("strict", server__auth="require")
    alice, bob = await owner(net, strict), await net.user("bob", strict)
    a = await net.session(alice)
    await a.send_text(bob.login, "x")
    for client in (await net.connect(strict), await second_server(net, strict)):
        for op in ("DmSyncBatch", "UserSettingsSyncBatch"):
            with pytest.raises(ShineError) as e:
                await patiently(client, op, {"ownerLogin": alice.login})
            assert code(e.value) == (403, "PEER_NOT_ACCESS_SERVER")


async def test_a_server_without_a_login_answers_so(spare, net):
    nameless = spare("nameless", **{"server__SHiNE__login": ""})
    client = await net.connect(nameless)
    for op in ("DmSyncBatch", "UserSettingsSyncBatch"):
        assert code(await refused(client, op, {"ownerLogin": "alice"})) == (
            500, "LOCAL_SERVER_NOT_CONFIGURED")  # fmt: skip


async def test_the_rest_is_fetched_after_the_owner_moved(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    a = await net.session(alice)
    await a.send_text(bob.login, "x")
    home.shinectl("user", "set-servers", alice.login, "--access", f"new={TWIN_URL}")
    new, twin = await second_server(net, home, "new"), await second_server(net, home)
    assert code(await refused(twin, "DmSyncBatch", {"ownerLogin": alice.login})) == (
        403, "PEER_NOT_ACCESS_SERVER")  # fmt: skip
    page = await batch(new, alice)
    assert len(page["items"]) == 1
    await batch(new, alice, ackSyncIds=ids(page))
    assert code(await refused(new, "DmSyncBatch", {"ownerLogin": alice.login})) == (
        403, "LOCAL_SERVER_NOT_ACCESS_SERVER")  # fmt: skip


# ---- settings ----


async def settings_batch(client, user, **ask):
    return await patiently(client, "UserSettingsSyncBatch", {"ownerLogin": user.login, **ask})


async def test_settings_are_paged_and_acknowledged(home, net):
    alice = await owner(net, home)
    a, twin = await net.session(alice), await second_server(net, home)
    payloads = [setting_payload(alice.login, alice.key, n, v) for n, v in
                (("one", "1"), ("two", "zwei"), ("three", ""))]  # fmt: skip
    for payload in payloads:
        await a.call("UpsertUserSetting", payload)
    page = await settings_batch(twin, alice)
    digest = hashlib.sha256(b"zwei").hexdigest()[:16]
    assert page["items"][1]["syncId"] == f"two:{payloads[1]['timeMs']}:{digest}"
    shown = ("name", "value", "timeMs", "signatureB64")
    assert [{k: item[k] for k in shown} for item in page["items"]] == payloads
    assert set(page["items"][0]) == {*shown, "syncId", "storedAtMs"} and page["hasMore"] is False
    first = await settings_batch(twin, alice, limit=1)
    assert first["hasMore"] and first["nextName"] == "one"
    rest = await settings_batch(
        twin, alice, afterStoredAtMs=first["nextStoredAtMs"], afterName=first["nextName"]
    )
    assert first["items"] + rest["items"] == page["items"]
    assert [i["name"] for i in (await settings_batch(twin, alice, maxBytes=4))["items"]] == ["one"]
    await a.set_setting("two", "drei")
    page = await settings_batch(twin, alice, ackSyncIds=[i["syncId"] for i in page["items"]])
    assert [(i["name"], i["value"]) for i in page["items"]] == [("two", "drei")]
    await settings_batch(twin, alice, ackSyncIds=[i["syncId"] for i in page["items"]])
    assert (await settings_batch(twin, alice))["items"] == []


async def test_settings_that_grow_in_json_still_fit_a_frame(home, net):
    alice = await owner(net, home)
    a, twin = await net.session(alice), await second_server(net, home)
    for n in range(20):  # 1.3 MB of values, 7.8 MB in JSON
        await a.set_setting(f"s{n:02}", "\u0001" * 65536)
    got, ask = [], {}
    while True:
        page = await settings_batch(twin, alice, **ask)
        got += [item["name"] for item in page["items"]]
        assert len(page["items"]) <= 10
        if not page["hasMore"]:
            break
        ask = {"afterStoredAtMs": page["nextStoredAtMs"], "afterName": page["nextName"]}
    assert got == [f"s{n:02}" for n in range(20)]


async def test_everything_is_offered_again(home, net):
    alice, bob = await owner(net, home), await net.user("bob", home)
    a, b, twin = await net.session(alice), await net.session(bob), await second_server(net, home)
    await a.set_setting("s", "v")
    await a.send_text(bob.login, "x")
    await b.send_text(alice.login, "y")
    page, settings = await batch(twin, alice), await settings_batch(twin, alice)
    await batch(twin, alice, ackSyncIds=ids(page))
    await settings_batch(twin, alice, ackSyncIds=ids(settings))
    mark = "MarkAllUserSettingsUnsynced"
    assert await a.call(mark) == {"settingsUpdated": 1, "dmUpdated": 2}
    assert await a.call(mark, {"login": alice.login}) == {"settingsUpdated": 1, "dmUpdated": 2}
    assert (await settings_batch(twin, alice))["items"] == settings["items"]
    lease = home.rows("SELECT * FROM sync_leases WHERE owner_login = %s", [alice.login])
    assert [(row["server_login"], row["mark_from"]) for row in lease] == [(TWIN, "")]
    assert await b.call(mark) == {"settingsUpdated": 0, "dmUpdated": 0}
    assert code(await refused(b, mark, {"login": alice.login})) == (
        422, "SESSION_OF_ANOTHER_USER")  # fmt: skip


# ---- delivery status ----


async def test_status_of_many_messages(home, net):
    alice, bob = await net.user("alice", home), await net.user("bob", home)
    far = await net.user("far", urls=[("elsewhere", TWIN_URL)], known_to=(home,))
    a, anybody = await net.session(alice), await net.connect(home)
    local, remote = await a.send_text(bob.login, "x"), await a.send_text(far.login, "y")
    unknown = f"{alice.login}|{bob.login}|1|1|2"
    asked = [remote["outgoingKey"], "nonsense", local["incomingKey"], unknown, local["outgoingKey"]]
    answer = await anybody.call("GetDmDeliveryStatuses", {"messageKeys": asked})
    revision = {"revisionTimeMs": 0, "reencryptedAtMs": 0}
    assert answer["items"] == [
        {"messageKey": asked[0], "known": True, "delivered": False, **revision},
        {"messageKey": asked[1], "known": False, "delivered": False},
        {"messageKey": asked[2], "known": True, "delivered": True, **revision},
        {"messageKey": asked[3], "known": False, "delivered": False},
        {"messageKey": asked[4], "known": True, "delivered": True, **revision},
    ]
    many = await anybody.call("GetDmDeliveryStatuses", {"messageKeys": [asked[0]] * 500})
    assert many["items"] == answer["items"][:1] * 500
    assert await anybody.call("GetDmDeliveryStatuses", {"messageKeys": []}) == {"items": []}
    for wrong, error in ((["a"] * 501, "BAD_FIELDS"), ([1], "BAD_FIELDS"), (None, "BAD_FIELDS"),
                         ([""], "EMPTY_MESSAGE_KEY"), (["x" * 256], "BAD_FIELDS")):  # fmt: skip
        refusal = await refused(anybody, "GetDmDeliveryStatuses", {"messageKeys": wrong})
        assert code(refusal) == (400, error)


# ---- the operator ----


async def test_an_operator_offers_everything_again(spare, net):
    server = spare("operated")
    users = [await owner(net, server) for _ in range(45)]  # more than shinectl marks at once
    bob = await net.user("bob", server)
    for user in (users[0], users[44]):
        session = await net.session(user)
        await session.set_setting("s", "v")
        await session.send_text(bob.login, "x")
    server.rows("UPDATE user_settings SET synced = true")
    server.rows("UPDATE sync_leases SET mark_from = NULL")
    one = server.shinectl("--json", "sync", "mark-unsynced", users[0].login)
    assert one.stdout.split() == '{"users":1,"settings":1,"messages":1}'.split()
    (marked,) = server.rows("SELECT owner_login FROM sync_leases WHERE mark_from = ''")
    assert marked["owner_login"] == users[0].login
    everybody = server.shinectl("sync", "mark-unsynced", "--all").stdout
    assert everybody == "2 settings are, and 2 messages will be, offered again\n"
    assert server.value("SELECT count(*) FROM sync_leases WHERE mark_from = ''") == 45
    assert server.value("SELECT count(*) FROM user_settings WHERE NOT synced") == 2
    backlog = server.rows("SELECT * FROM v_sync_backlog WHERE owner_login = %s", [users[0].login])
    assert [(b["peer"], b["messages"], b["settings"], b["filling"]) for b in backlog] == [
        (TWIN, 1, 1, True)]  # fmt: skip
    for wrong in ((), ("Not-A-Login",), (bob.login, "--all")):
        done = server.shinectl("sync", "mark-unsynced", *wrong, check=False)
        assert done.returncode == 2 and done.stderr
