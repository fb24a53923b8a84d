"""syncd against second servers that are old, slow, wrong or gone: what it asks, what it takes, and that
one owner's trouble is nobody else's."""

import asyncio

import pytest
from example_client import b64, now_ms, setting_payload, shine_dm
from nacl.signing import SigningKey
from support.peers import FalsePeer, hello_answer
from support.sync import item, sync_once, syncd
from support.waiting import eventually

OLD = 1_000_000
UNKNOWN = {"status": 400, "error": "UNKNOWN_OP"}


class SecondServer:
    """Answers from lists: pages of items, deliveries it knows of, settings. Remembers what was
    acknowledged."""

    def __init__(self, login="twin", old=False):
        self.login, self.old = login, old
        self.items, self.settings, self.delivered = {}, {}, {}
        self.acked = []
        self.capabilities = ["dm-sync", "dm-status-batch"]
        self.page = 500
        self.override = {}  # op -> function of the request, instead of all this

    async def __call__(self, request):
        op, ask = request["op"], request["payload"]
        if op in self.override:
            return await self.override[op](request)
        if op == "ServerHello":
            return UNKNOWN if self.old else hello_answer(self.login, *self.capabilities)
        if op == "Ping":
            return {}
        if op == "GetUser":
            return {"payload": {"exists": False}}
        if op == "DmSyncBatch":
            return self.batch(self.items, ask, "primaryMessageKey", "afterMessageKey", "nextMessageKey")
        if op == "UserSettingsSyncBatch" and not self.old:
            return self.batch(self.settings, ask, "name", "afterName", "nextName")
        if op == "GetDmDeliveryStatus":
            return {"payload": self.status(ask["messageKey"])}
        if op == "GetDmDeliveryStatuses" and not self.old:
            return {"payload": {"items": [self.status(key) for key in ask["messageKeys"]]}}
        return UNKNOWN

    def batch(self, items, ask, key, after, following):
        self.acked += ask["ackSyncIds"]
        waiting = [i for i in items.get(ask["ownerLogin"], []) if i["syncId"] not in self.acked]
        cursor = (ask["afterStoredAtMs"], ask[after])
        rest = [i for i in waiting if (i["storedAtMs"], i[key]) > cursor]
        limit = min(ask["limit"], self.page)
        last = (rest[:limit] or [{"storedAtMs": cursor[0], key: cursor[1]}])[-1]
        return {"payload": {"items": rest[:limit], "hasMore": len(rest) > limit,
                            "nextStoredAtMs": last["storedAtMs"], following: last[key]}}  # fmt: skip

    def status(self, key):
        found = self.delivered.get(key)
        status = {"messageKey": key, "known": found is not None, "delivered": bool(found)}
        if isinstance(found, tuple):
            status.update(revisionTimeMs=found[0], reencryptedAtMs=found[1])
        return status


@pytest.fixture
def puller(world):
    server = world.server("puller", frontd__workers=1)
    yield server
    server.stop()
    server.forget_connection()


async def people(net, puller, peer, *names):
    """Users whose second server is `peer`, and somebody far away."""
    owners = [await net.user(name, puller, urls=[(peer.login, peer.url)]) for name in names]
    far = await net.user("far", urls=[("nobody", "wss://127.0.0.1:9/ws")], known_to=(puller,))
    return (*owners, far)


def pages_of(owner, partner, n, start=0):
    pairs = [owner.pair(partner, str(i), time_ms=OLD + i, nonce=i) for i in range(start, start + n)]
    return [item(owner, pair, 5000 + i) for i, pair in enumerate(pairs, start)]


def stored(server, owner):
    return server.value("SELECT count(*) FROM signed_messages WHERE owner_login = %s AND NOT courier",
                        [owner.login])  # fmt: skip


async def test_an_old_server_that_knows_only_the_base_protocol(puller, net):
    twin = SecondServer(old=True)
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, far = await people(net, puller, peer, "alice")
        twin.items[alice.login] = pages_of(alice, far, 5)
        keys = [i["primaryMessageKey"] for i in twin.items[alice.login]]
        # It names no revision: that is the original. One is of an edit we do not have.
        twin.delivered = {keys[0]: True, keys[1]: False, keys[2]: (0, 0), keys[3]: (7, 0)}
        status, out, log = await sync_once(puller)
        assert status == 0, (out, log)
        assert sorted(twin.acked) == sorted(i["syncId"] for i in twin.items[alice.login])
        rows = puller.rows("SELECT outgoing_key, state, delivered_via FROM dm_delivery_state ORDER BY 1")
        assert [tuple(row.values()) for row in rows] == [
            (keys[0], "delivered", "twin"), (keys[2], "delivered", "twin")]  # fmt: skip
        assert peer.ops().count("GetDmDeliveryStatuses") == 1
        assert peer.ops().count("GetDmDeliveryStatus") == 5


async def test_pages_are_asked_for_in_order_and_acknowledged_after_the_commit(puller, net):
    twin = SecondServer()
    twin.page = 3
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, far = await people(net, puller, peer, "alice")
        twin.items[alice.login] = pages_of(alice, far, 10)
        committed = []

        async def batch(request):
            acks = request["payload"]["ackSyncIds"]
            known = {r["message_key"] for r in puller.rows("SELECT message_key FROM signed_messages")}
            committed.append({a.rsplit(":", 1)[0] for a in acks} <= known)
            return twin.batch(twin.items, request["payload"], "primaryMessageKey", "afterMessageKey",
                              "nextMessageKey")  # fmt: skip

        twin.override["DmSyncBatch"] = batch
        status, out, log = await sync_once(puller)
        assert status == 0 and "10 messages" in out, (out, log)
        assert all(committed) and len(twin.acked) == 10
        asked = [r["payload"] for r in peer.requests if r["op"] == "DmSyncBatch"]
        assert asked[0]["afterStoredAtMs"] == 0 and asked[0]["afterMessageKey"] == ""
        assert [a["afterStoredAtMs"] for a in asked] == [0, 5002, 5005, 5008, 5009]
        assert asked[-1]["ackSyncIds"] and all(a["limit"] == 500 for a in asked)
        assert asked[0]["maxBytes"] == 262_144 and asked[0]["ownerLogin"] == alice.login
        assert peer.connections == 1
        first = next(r for r in peer.requests if r["op"] != "ServerHello")
        assert first["op"] == "UserSettingsSyncBatch"  # settings first


async def test_items_that_are_wrong_are_refused_alone(puller, net):
    twin = SecondServer()
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, far = await people(net, puller, peer, "alice")
        stranger, other = await net.user("stranger"), SigningKey.generate()
        good = alice.pair(far, "good", time_ms=OLD)
        forged = shine_dm.text_pair(alice.login, far.login, other, "x", time_ms=OLD)
        flipped = bytes([good[1][0] ^ 1]) + good[1][1:]
        received = far.pair(alice, "got", time_ms=OLD)
        ahead = alice.pair(far, "ahead", time_ms=now_ms() + 25 * 3600_000)
        cases = [
            (good, None),
            (received[:1], None),
            (good[1:], None),
            ((shine_dm.delete(alice.login, far.login, alice.key, (1, 1), False, True),), None),
            (forged, "BAD_SIGNATURE"),
            ((good[0], flipped), "BAD_MAGIC"),
            ((good[1], good[0]), "PAIR_MISMATCH"),
            ((good[0], alice.pair(far, "other")[1]), "PAIR_MISMATCH"),
            (good[:1], "NOT_THE_OWNERS"),
            (far.pair(alice, "sent by far"), "PAIR_MISMATCH"),
            (far.pair(alice, "sent by far")[1:], "NOT_THE_OWNERS"),
            ((shine_dm.delete(far.login, alice.login, far.key, (1, 1), False, False),), "NOT_THE_OWNERS"),
            (alice.pair(stranger, "x"), "USER_NOT_FOUND"),
            ((b"",), "BAD_LENGTH"),
        ]  # fmt: skip
        twin.items[alice.login] = [item(alice, blobs, 10 + n) for n, (blobs, _) in enumerate(cases)]
        spoilt = item(alice, good, 90)
        spoilt["blobsB64"][0] = "!!"
        twin.items[alice.login].append(spoilt)
        cases.append((None, "BAD_BASE64"))
        status, out, log = await sync_once(puller)
        assert status == 3, (out, log)
        want = {i["syncId"]: r for i, (_, r) in zip(twin.items[alice.login], cases)}
        assert sorted(twin.acked) == sorted(i for i, reason in want.items() if reason is None)
        noted = puller.rows("SELECT sync_id, reason FROM dm_sync_rejects WHERE owner_login = %s",
                            [alice.login])  # fmt: skip
        assert {r["sync_id"]: r["reason"] for r in noted} == {i: r for i, r in want.items() if r}
        # A clock that is ahead is no refusal: it comes again.
        twin.items[alice.login] = [item(alice, ahead, 5)]
        status, out, log = await sync_once(puller)
        assert status == 2 and "to be judged later" in out, (out, log)
        assert not puller.rows("SELECT 1 FROM dm_sync_rejects")


def stuck(page):
    async def answer(request):
        return {"payload": page}

    return answer


async def test_a_stream_that_does_not_advance_ends_the_turn_of_its_owner_alone(puller, net):
    twin = SecondServer()
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, bob, far = await people(net, puller, peer, "alice", "bob")
        twin.items[bob.login] = pages_of(bob, far, 3)
        page = pages_of(alice, far, 2)
        end = {"nextStoredAtMs": page[-1]["storedAtMs"], "nextMessageKey": page[-1]["primaryMessageKey"]}
        for answer, why in (
            ({"items": page, "hasMore": True, **end}, "cursor_stands_still"),
            ({"items": [], "hasMore": True, **end}, "cursor_stands_still"),
            ({"items": page, "hasMore": True}, "cursor_stands_still"),
            ({"items": {}, "hasMore": False, **end}, "bad_page"),
            ({"hasMore": False}, "bad_page"),
            ({"items": page * 251, "hasMore": False, **end}, "bad_page"),
            ({"items": [{**page[0], "syncId": None}], "hasMore": False, **end}, "bad_page"),
            ({"items": [{**page[0], "blobsB64": []}], "hasMore": False, **end}, "bad_page"),
            ({"items": [1], "hasMore": False, **end}, "bad_page"),
        ):  # fmt: skip
            twin.acked = []

            async def batch(request, answer=answer):
                if request["payload"]["ownerLogin"] == alice.login:
                    return {"payload": answer}
                return twin.batch(twin.items, request["payload"], "primaryMessageKey",
                                  "afterMessageKey", "nextMessageKey")  # fmt: skip

            twin.override["DmSyncBatch"] = batch
            status, out, log = await sync_once(puller)
            lines = {line.split()[0]: line for line in out.splitlines()}
            assert status == 2 and why in lines[alice.login], (answer, out, log)
            assert lines[bob.login].endswith("equal")
            assert sorted(twin.acked)[-3:] == sorted(i["syncId"] for i in twin.items[bob.login])


async def test_without_an_answer_about_deliveries_nothing_is_acknowledged(puller, net):
    twin = SecondServer()

    async def busy(request):
        return {"status": 503, "error": "OVERLOADED", "payload": {"retryAfterMs": 100}}

    twin.override["GetDmDeliveryStatuses"] = busy
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, far = await people(net, puller, peer, "alice")
        twin.items[alice.login] = pages_of(alice, far, 3)
        status, out, _ = await sync_once(puller)
        assert status == 2 and "busy" in out and twin.acked == []
        del twin.override["GetDmDeliveryStatuses"]
        assert (await sync_once(puller))[0] == 0 and len(twin.acked) == 3


async def test_settings_are_checked_too(puller, net):
    twin = SecondServer()
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, _ = await people(net, puller, peer, "alice")

        def setting(name, value="v", n=0, key=None, **wrong):
            signed = setting_payload(alice.login, key or alice.key, name, value)
            return {**signed, "storedAtMs": 5 + n, "syncId": f"{name}:{n}", **wrong}

        twin.settings[alice.login] = [
            setting("good", n=0),
            setting("forged", n=1, key=SigningKey.generate()),
            setting("long", "x" * 65537, n=2),
            setting("bad:name", n=3),
            setting("time", n=4, timeMs=-1),
            setting("sig", n=5, signatureB64=b64(b"x")),
            setting("last", "", n=6),
        ]
        status, out, log = await sync_once(puller)
        assert status == 3 and "2 settings" in out, (out, log)
        assert twin.acked == ["good:0", "last:6"]
        kept = puller.rows("SELECT name, value, synced FROM user_settings ORDER BY 1")
        assert [tuple(row.values()) for row in kept] == [("good", "v", True), ("last", "", True)]
        a = await net.session(alice, puller)
        async with syncd(puller):
            twin.settings[alice.login].append(setting("new", "now", n=7))
            puller.rows("UPDATE sync_leases SET due_at_ms = 0")
            event = await a.wait_event("UserSettingChanged")
            assert (event["name"], event["value"]) == ("new", "now")


async def test_a_server_that_comes_back_is_pulled_soon(puller, net):
    twin = SecondServer()
    down = FalsePeer("twin", puller.certificate, twin)
    async with down:
        alice, far = await people(net, puller, down, "alice")
        port = int(down.url.split(":")[2].split("/")[0])
    async with syncd(puller, "--set", "server.pool.connectTimeoutSeconds=2"):
        await eventually(
            lambda: puller.rows("SELECT 1 FROM sync_leases WHERE result LIKE 'not reached%%'"),
            "the turn to fail", 30)  # fmt: skip
        assert puller.value("SELECT due_at_ms > now_ms() FROM sync_leases") is True
        twin.items[alice.login] = pages_of(alice, far, 2)
        up = FalsePeer("twin", puller.certificate, twin)
        up.port = port
        async with up:
            await eventually(lambda: len(twin.acked) == 2, "the items to be fetched", 40)


async def test_a_killed_puller_is_taken_over(puller, net):
    twin = SecondServer()
    hold = asyncio.Event()
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, far = await people(net, puller, peer, "alice")
        twin.items[alice.login] = pages_of(alice, far, 120)
        twin.page = 60
        asked = 0

        async def batch(request):
            nonlocal asked
            asked += 1
            if asked == 3 and not hold.is_set():
                await hold.wait()
            return twin.batch(twin.items, request["payload"], "primaryMessageKey", "afterMessageKey",
                              "nextMessageKey")  # fmt: skip

        twin.override["DmSyncBatch"] = batch
        a = await net.session(alice, puller, event_mode="pts")
        async with syncd(puller) as first:
            await eventually(lambda: asked == 3, "the third request", 30)
            first.kill()
        hold.set()
        assert puller.value("SELECT lease_owner IS NOT NULL FROM sync_leases") is True
        # Nobody else works on it while the lease lives.
        status, out, _ = await sync_once(puller)
        assert (status, alice.login in out) == (0, False)
        puller.move_clock(91_000)
        status, out, log = await sync_once(puller)
        puller.move_clock(0)
        assert status == 0 and alice.login in out, (out, log)
        assert stored(puller, alice) == 120 and len(set(twin.acked)) == 120
        # Whatever was committed before the kill is told as well.
        told = await a.wait_event("HistoryChanged")
        assert told["withLogins"] == [far.login]
        assert puller.value("SELECT count(*) FROM user_event_heads WHERE history_with IS NOT NULL") == 0


async def test_a_busy_owner_does_not_hold_up_the_others(puller, net):
    twin = SecondServer()
    twin.page = 2
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, bob, far = await people(net, puller, peer, "alice", "bob")
        twin.items[alice.login] = pages_of(alice, far, 12)
        twin.items[bob.login] = pages_of(bob, far, 2)

        async def slow(request):
            if request["payload"]["ownerLogin"] == alice.login:
                await asyncio.sleep(0.4)
            return twin.batch(twin.items, request["payload"], "primaryMessageKey", "afterMessageKey",
                              "nextMessageKey")  # fmt: skip

        twin.override["DmSyncBatch"] = slow
        status, out, log = await sync_once(puller, "--set", "sync.maxTurnMs=1000")
        assert status == 0 and "2 users: 0 settings, 14 messages" in out, (out, log)
        owners = [r["payload"]["ownerLogin"] for r in peer.requests if r["op"] == "DmSyncBatch"]
        first_of_bob = owners.index(bob.login)
        assert alice.login in owners[:first_of_bob] and alice.login in owners[first_of_bob:]
        assert stored(puller, alice) == 12 and len(set(twin.acked)) == 14
        # What it had taken when time was up was acknowledged: nothing came twice.
        assert len(twin.acked) == len(set(twin.acked))


async def test_a_connection_that_breaks_between_page_and_acknowledgement(puller, net):
    twin = SecondServer()
    twin.capabilities.append("pipelining")  # or what is asked meanwhile waits behind the silence
    twin.page = 4
    async with FalsePeer("twin", puller.certificate, twin) as peer:
        alice, far = await people(net, puller, peer, "alice")
        twin.items[alice.login] = pages_of(alice, far, 10)
        asked = 0

        async def silent(request):
            nonlocal asked
            asked += 1
            if asked == 3:
                return None  # this request, with its acknowledgements, is never answered
            return twin.batch(twin.items, request["payload"], "primaryMessageKey", "afterMessageKey",
                              "nextMessageKey")  # fmt: skip

        twin.override["DmSyncBatch"] = silent
        limits = ("--set", "server.pool.requestTimeoutSeconds=1")
        status, out, _ = await sync_once(puller, *limits)
        assert status == 2 and "not reached" in out
        assert stored(puller, alice) == 8 and len(twin.acked) < 8
        status, out, log = await sync_once(puller, *limits)
        assert status == 0, (out, log)
        assert stored(puller, alice) == 10 and len(set(twin.acked)) == 10
