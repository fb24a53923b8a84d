"""GetDirectMessages and GetDmDeliveryStatus."""

import asyncio

import pytest
from example_client import ShineError, b64, text_of, unb64


async def refused(client, op, payload):
    with pytest.raises(ShineError) as e:
        await client.call(op, payload)
    return e.value.status, e.value.error


async def pages(client, **ask):
    """Every page of a conversation as a list of items."""
    result = []
    while True:
        page = await client.call("GetDirectMessages", ask)
        result.append(page["items"])
        if not page["hasMore"]:
            return result
        assert page["items"], "a page with more to come holds at least one item"
        ask["beforeTimeMs"] = page["nextBeforeTimeMs"]
        ask["beforeMessageKey"] = page["nextBeforeMessageKey"]


def order(items):
    return [(item["timeMs"], item["messageKey"]) for item in items]


async def test_an_item_tells_everything(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    a, c = await net.session(alice), await net.session(carol)
    before = alpha.now_ms()
    sent = await a.send_text(carol.login, "hello", time_ms=1_774_700_000_123, nonce=77)
    (own,) = (await a.call("GetDirectMessages", {"withLogin": carol.login}))["items"]
    (got,) = (await c.call("GetDirectMessages", {"withLogin": alice.login}))["items"]
    assert own["messageKey"] == sent["outgoingKey"] and got["messageKey"] == sent["incomingKey"]
    assert own["deliveryState"] == "delivered" and got["deliveryState"] is None
    for item, kind in ((own, 2), (got, 1)):
        assert before <= item["createdAtMs"] <= alpha.now_ms()
        assert text_of(item) == "hello"
        seen = ("createdAtMs", "blobB64", "deliveryState")
        assert {name: value for name, value in item.items() if name not in seen} == {
            "messageKey": f"{sent['baseKey']}|{kind}",
            "baseKey": sent["baseKey"],
            "fromLogin": alice.login,
            "toLogin": carol.login,
            "messageType": kind,
            "timeMs": 1_774_700_000_123,
            "nonce": 77,
            "revisionTimeMs": 0,
            "reencryptedAtMs": 0,
            "readAtMs": None,
        }


async def test_pages_across_equal_times(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    a, c = await net.session(alice), await net.session(carol)
    sends = []
    for n in range(30):  # six messages of each time, from both sides; nonces of many lengths
        stamps = {"time_ms": 1000 + n // 6, "nonce": 3**n % 2**32}
        sender, to = (a, carol) if n % 2 else (c, alice)
        sends.append(sender.send_text(to.login, str(n), **stamps))
    await asyncio.gather(*sends)
    whole = [item async for item in a.history(carol.login)]
    assert len(whole) == 30
    assert order(whole) == sorted(order(whole), reverse=True)
    for limit in (1, 4, 6, 7, 29, 30, 200):
        got = await pages(a, withLogin=carol.login, limit=limit)
        assert [len(p) for p in got[:-1]] == [limit] * (len(got) - 1)
        assert [i for p in got for i in p] == whole
    # Without a key the cursor leaves out its whole millisecond.
    page = await a.call("GetDirectMessages", {"withLogin": carol.login, "beforeTimeMs": 1002})
    assert {i["timeMs"] for i in page["items"]} == {1000, 1001}
    assert len(page["items"]) == 12 and not page["hasMore"]


async def test_limits_of_the_request(alpha, net):
    alice = await net.user("alice", alpha)
    a = await net.session(alice)
    bad = [
        {"limit": 0},
        {"limit": 201},
        {"limit": -1},
        {"limit": "10"},
        {"beforeTimeMs": -1},
        {"beforeTimeMs": "x"},
        {"beforeMessageKey": 5, "beforeTimeMs": 1},
        {"withLogin": "Not A Login"},
        {"withLogin": 5},
    ]
    for changes in bad:
        ask = {"withLogin": "carol", **changes}
        assert await refused(a, "GetDirectMessages", ask) == (400, "BAD_FIELDS"), changes
    assert await refused(a, "GetDirectMessages", {}) == (400, "BAD_FIELDS")
    empty = await a.call("GetDirectMessages", {"withLogin": "nobody_at_all", "limit": 200})
    assert empty["items"] == [] and empty["hasMore"] is False


async def test_large_pages_stop_at_the_answers_bound(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    a = await net.session(alice)
    for n in range(25):
        await a.send_text(carol.login, bytes((n,)) * 65000)
    sizes = []
    cursor = {}
    while True:
        pending = a.start("GetDirectMessages", {"withLogin": carol.login, **cursor})
        page = (await pending).result()
        sizes.append(sum(len(i["blobB64"]) for i in page["items"]))
        cursor = {
            "beforeTimeMs": page["nextBeforeTimeMs"],
            "beforeMessageKey": page["nextBeforeMessageKey"],
        }
        if not page["hasMore"]:
            break
    assert len(sizes) > 1 and max(sizes) < 1024 * 1024
    assert min(sizes[:-1]) > 512 * 1024, "pages are filled"
    assert sum(sizes) > 25 * 65000


async def test_a_page_holds_at_least_one_item(world, net):
    server = world.server("tiny", limits__maxAnswerBytes=65536)
    alice, carol = await net.user("alice", server), await net.user("carol", server)
    a = await net.session(alice)
    for n in range(3):
        await a.send_text(carol.login, bytes((n,)) * 65536, time_ms=n + 1)
    got = await pages(a, withLogin=carol.login)
    assert [[i["timeMs"] for i in page] for page in got] == [[3], [2], [1]]
    await net.close()
    assert server.stop()


async def test_other_users_conversations_are_invisible(alpha, net):
    alice, carol, eve = [await net.user(name, alpha) for name in ("alice", "carol", "eve")]
    a, e = await net.session(alice), await net.session(eve)
    sent = await a.send_text(carol.login, "secret")
    for with_login in (alice.login, carol.login, eve.login):
        assert [i async for i in e.history(with_login)] == []
    cursor = {"beforeTimeMs": 2**53 - 1, "beforeMessageKey": sent["incomingKey"]}
    page = await e.call("GetDirectMessages", {"withLogin": alice.login, **cursor})
    assert page["items"] == []
    await a.send_text(eve.login, "for eve")
    (item,) = [i async for i in e.history(alice.login)]
    assert text_of(item) == "for eve" and [i async for i in e.history(carol.login)] == []
    assert not [ev for ev in e.events if ev["baseKey"] == sent["baseKey"]]


async def test_the_couriers_copy_is_in_no_history(alpha, net):
    """alpha keeps what it delivers for others, but does not show it, even to the recipient."""
    alice = await net.user("alice", alpha)
    gone = [("gamma", "wss://127.0.0.1:1/ws")]
    guest = await net.user("guest", known_to=(alpha,), urls=gone)
    a = await net.session(alice)
    sent = await a.send_text(guest.login, "to be delivered")
    assert sent["deliveryState"] == "accepted"
    g = await net.session(guest, alpha)
    assert [i async for i in g.history(alice.login)] == []
    (item,) = [i async for i in a.history(guest.login)]
    assert item["messageType"] == 2 and item["deliveryState"] == "accepted"


async def test_delivery_status(alpha, net):
    alice, carol = await net.user("alice", alpha), await net.user("carol", alpha)
    away = await net.user("away", known_to=(alpha,), urls=[("gamma", "wss://127.0.0.1:1/ws")])
    c = await net.connect(alpha)
    here = await c.send_pair(*alice.pair(carol))
    there = await c.send_pair(*alice.pair(away, revision=9))
    for sent, delivered, revision in ((here, True, 0), (there, False, 9)):
        for key in (sent["outgoingKey"], sent["incomingKey"]):
            status = await c.call("GetDmDeliveryStatus", {"messageKey": key})
            assert status["messageKey"] == key
            assert status["known"] is True and status["delivered"] is delivered
            assert status["revisionTimeMs"] == revision and status["reencryptedAtMs"] == 0
    unknown = here["baseKey"].rsplit("|", 1)[0] + "|1|2"
    status = await c.call("GetDmDeliveryStatus", {"messageKey": unknown})
    assert status["known"] is False and status["delivered"] is False
    for payload in ({}, {"messageKey": ""}):
        assert (await refused(c, "GetDmDeliveryStatus", payload)) == (400, "EMPTY_MESSAGE_KEY")
    for key in ("garbage", "a|b|1|1|9", "a|b|01|1|2"):  # no row can have such a key
        status = await c.call("GetDmDeliveryStatus", {"messageKey": key})
        assert status["known"] is False and status["messageKey"] == key
    for key in (5, "k" * 256):
        refusal = await refused(c, "GetDmDeliveryStatus", {"messageKey": key})
        assert refusal == (400, "BAD_FIELDS")


async def test_an_incoming_copy_is_delivered_history(alpha, net):
    """ReceiveIncomingMessage from somebody's server: stored for the recipient, told, idempotent."""
    writer = await net.user("writer", known_to=(alpha,), urls=[("gamma", "wss://g.example/ws")])
    carol = await net.user("carol", alpha)
    at_carol = await net.session(carol)
    c = await net.connect(alpha)
    incoming, _ = writer.pair(carol, "from afar")
    payload = {"incomingBlobB64": b64(incoming), "sourceServerLogin": "gamma"}
    answer = await c.call("ReceiveIncomingMessage", payload)
    assert answer["messageKey"] == answer["baseKey"] + "|1"
    assert answer["deliveredWsSessions"] == 1 and answer["deliveredWebPushSessions"] == 0
    event = await at_carol.wait_event("IncomingDirectMessage")
    assert unb64(event["blobB64"]) == incoming and event["pts"] == 1
    again = await c.call("ReceiveIncomingMessage", payload)
    assert again == {**answer, "deliveredWsSessions": 0}
    (item,) = [i async for i in at_carol.history(writer.login)]
    assert item["messageKey"] == answer["messageKey"] and item["deliveryState"] is None
    assert alpha.rows("SELECT 1 FROM dm_delivery_state WHERE from_login = %s", [writer.login]) == []
