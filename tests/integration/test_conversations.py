"""ListConversations: order, pages, unread counts, what deletions leave."""

import asyncio

import pytest
import shine_dm as dm
from example_client import text_of
from support.refusals import code, refused

TOLD = 60


async def home(alpha, net, *names):
    """alice with a session, and the others as users."""
    users = [await net.user(name, alpha) for name in ("alice", *names)]
    return [await net.session(users[0]), *users]


async def listed(client, **ask):
    return [item async for item in client.conversations(**ask)]


async def one(client):
    (item,) = await listed(client)
    return item


async def test_an_item_tells_everything(alpha, net):
    a, alice, bob = await home(alpha, net, "bob")
    b = await net.session(bob)
    sent = await a.send_text(bob.login, "first", time_ms=1000, nonce=1)
    sent = await a.send_text(bob.login, "newest", time_ms=2000, nonce=2)
    for client, other, key in ((a, bob, sent["outgoingKey"]), (b, alice, sent["incomingKey"])):
        item = await one(client)
        page = await client.call("GetDirectMessages", {"withLogin": other.login, "limit": 1})
        assert item == {
            "withLogin": other.login,
            "lastMessageKey": key,
            "lastTimeMs": 2000,
            "lastMessage": page["items"][0],
            "unreadCount": 0 if client is a else 2,
            "lastReadAtMs": None,
        }
        assert text_of(item["lastMessage"]) == "newest"


async def test_unread_counts(alpha, net):
    a, alice, bob = await home(alpha, net, "bob")
    b = await net.session(bob)
    texts = [alice.pair(bob, str(n), time_ms=n, nonce=n) for n in (1, 2, 3)]
    for pair in texts:
        await a.send_pair(*pair)
    assert (await one(b))["unreadCount"] == 3 and (await one(a))["unreadCount"] == 0
    await a.send_pair(*alice.pair(bob, "edited", time_ms=3, nonce=3, revision=9))
    await a.send_pair(*texts[0])
    assert (await one(b))["unreadCount"] == 3  # neither an edit nor a repeat is another text
    keys = [{"messageKey": dm.parse(pair[0]).message_key()} for pair in texts]
    await b.send_receipt(keys[0], read_at_ms=50)
    await b.send_receipt(keys[0], read_at_ms=40)
    await b.send_receipt(keys[2], read_at_ms=70)
    item = await one(b)
    assert item["unreadCount"] == 1 and item["lastReadAtMs"] == 70
    assert (await one(a))["lastReadAtMs"] is None  # alice has read nothing herself
    await b.delete_message(keys[1])
    assert (await one(b))["unreadCount"] == 0


async def test_a_text_that_was_read_before_it_came(alpha, net):
    a, alice, bob = await home(alpha, net, "bob")
    b = await net.session(bob)
    text = alice.pair(bob, time_ms=5)
    await b.send_receipt({"messageKey": dm.parse(text[0]).message_key()}, read_at_ms=60)
    assert await listed(b) == []
    await a.send_pair(*text)
    item = await one(b)
    assert item["unreadCount"] == 0 and item["lastReadAtMs"] == 60


async def test_notes_to_self_are_never_unread(alpha, net):
    a, alice = await home(alpha, net)
    await a.send_text(alice.login, "remember")
    item = await one(a)
    assert item["withLogin"] == alice.login and item["unreadCount"] == 0
    assert text_of(item["lastMessage"]) == "remember"


async def test_order_and_pages_across_equal_times(alpha, net):
    a, alice = await home(alpha, net)
    others = [await net.user("other", alpha) for _ in range(9)]
    sends = [a.send_text(u.login, "x", time_ms=1000 + n // 4) for n, u in enumerate(others)]
    await asyncio.gather(*sends)
    whole = await listed(a)
    order = [(i["lastTimeMs"], i["withLogin"]) for i in whole]
    assert len(whole) == 9 and order == sorted(order, reverse=True)
    for limit in (1, 2, 4, 8, 9, 200):
        assert await listed(a, limit=limit) == whole
    page = await a.call("ListConversations", {"limit": 4})
    assert page["items"] == whole[:4] and page["hasMore"] is True
    # Without a login the cursor leaves out its whole millisecond.
    page = await a.call("ListConversations", {"beforeTimeMs": 1002})
    assert page["items"] == [i for i in whole if i["lastTimeMs"] < 1002]
    assert page["hasMore"] is False
    # What moves up while one pages is not seen twice.
    await a.send_text(others[0].login, "again", time_ms=9000)
    assert (await a.call("ListConversations", {"limit": 1}))["items"][0]["lastTimeMs"] == 9000


async def test_deletions_bring_back_what_was_before(alpha, net):
    a, alice, bob, carol = await home(alpha, net, "bob", "carol")
    b = await net.session(bob)
    for n in (1, 2, 3):
        await a.send_pair(*alice.pair(bob, str(n), time_ms=n * 10, nonce=n))
    await a.send_text(carol.login, "c", time_ms=25)
    newest = {"messageKey": f"{alice.login}|{bob.login}|30|3|1"}
    await b.delete_message(newest, for_both=False)
    item = await one(b)
    assert (item["lastTimeMs"], text_of(item["lastMessage"])) == (20, "2")
    assert item["unreadCount"] == 2
    assert [i["withLogin"] for i in await listed(a)] == [bob.login, carol.login]
    await a.delete_message(newest)
    assert [i["withLogin"] for i in await listed(a)] == [carol.login, bob.login]
    await b.delete_conversation(alice.login, 20)
    assert await listed(b) == [] and [i["withLogin"] for i in await listed(a)] == [carol.login]
    await a.send_text(bob.login, "anew")
    assert (await one(b))["unreadCount"] == 1


async def test_the_last_message_shows_its_state_and_edits(alpha, net):
    a, alice = await home(alpha, net)
    away = await net.user("away", known_to=(alpha,), urls=[("gamma", "wss://127.0.0.1:1/ws")])
    await a.send_pair(*alice.pair(away, "typo", time_ms=1, nonce=1))
    await a.send_pair(*alice.pair(away, "text", time_ms=1, nonce=1, revision=2))
    last = (await one(a))["lastMessage"]
    assert last["deliveryState"] == "accepted" and last["revisionTimeMs"] == 2
    assert text_of(last) == "text"


async def test_large_pages_stop_at_the_answers_bound(alpha, net):
    a, alice = await home(alpha, net)
    others = [await net.user("other", alpha) for _ in range(20)]
    for n, user in enumerate(others):
        await a.send_text(user.login, bytes((n,)) * 65000, time_ms=n)
    page = await a.call("ListConversations", {"limit": 200})
    size = sum(len(i["lastMessage"]["blobB64"]) for i in page["items"])
    assert 512 * 1024 < size < 1024 * 1024 and page["hasMore"]
    assert [i["lastTimeMs"] for i in await listed(a)] == list(range(19, -1, -1))


async def test_a_page_holds_at_least_one_item(world, net):
    server = world.server("tinier", limits__maxAnswerBytes=65536)
    a, alice, bob, carol = await home(server, net, "bob", "carol")
    for n, user in enumerate((bob, carol)):
        await a.send_text(user.login, bytes((n,)) * 65536, time_ms=n)
    page = await a.call("ListConversations", {})
    assert [i["lastTimeMs"] for i in page["items"]] == [1] and page["hasMore"]
    assert [i["lastTimeMs"] for i in await listed(a)] == [1, 0]
    await net.close()
    assert server.stop()


async def test_who_may_ask_and_how(alpha, net):
    a, _, bob = await home(alpha, net, "bob")
    await a.send_text(bob.login, "x")
    stranger = await net.connect(alpha)
    e = await refused(stranger, "ListConversations", {})
    assert code(e) == (401, "NOT_AUTHENTICATED")
    eve = await net.session(await net.user("eve", alpha))
    assert await listed(eve) == []
    for ask in (
        {"limit": 0},
        {"limit": 201},
        {"limit": "10"},
        {"beforeTimeMs": -1},
        {"beforeTimeMs": "x"},
        {"beforeLogin": "bob"},
        {"beforeTimeMs": 5, "beforeLogin": "Not A Login"},
        {"beforeTimeMs": 5, "beforeLogin": 7},
    ):
        assert code(await refused(a, "ListConversations", ask)) == (400, "BAD_FIELDS"), ask


@pytest.mark.parametrize("reader_here", [True, False])
async def test_conversations_of_users_on_two_servers(alpha, beta, net, reader_here):
    alice = await net.user("alice", alpha, known_to=(beta,))
    bob = await net.user("bob", beta, known_to=(alpha,))
    a, b = await net.session(alice), await net.session(bob)
    await a.send_text(bob.login, "across", time_ms=7)
    text = await b.wait_event("IncomingDirectMessage", timeout=TOLD)
    if reader_here:
        assert (await one(b))["unreadCount"] == 1
        await b.send_receipt(text, read_at_ms=8)
        item = await one(b)
        assert (item["unreadCount"], item["lastReadAtMs"]) == (0, 8)
    else:
        await b.send_receipt(text, read_at_ms=8)
        await a.wait_event(predicate=lambda p: p.get("messageType") == 3, timeout=TOLD)
        item = await one(a)
        assert item["lastMessage"]["readAtMs"] == 8 and item["lastReadAtMs"] is None
