"""What deliveryd hands to users' second servers, and what it delivers when somebody is back."""

import pytest
import shine_dm as dm
from example_client import b64, text_of, unb64
from support.fake_server import answers, in_turn, never
from support.retries import (
    SLOTS, TICK_MS, Scene, attempted, became, later,
)  # fmt: skip
from support.waiting import eventually

SETTINGS = {"delivery__firstReplyBudgetMs": 200, "delivery__tickMs": 60_000}


@pytest.fixture(scope="module")
def left(world):
    """Two servers with a deliveryd each, that looks once a minute: what comes sooner was told."""
    server = world.server("left", **SETTINGS)
    server.start_deliveryd()
    return server


@pytest.fixture(scope="module")
def right(world):
    server = world.server("right", **SETTINGS)
    server.start_deliveryd()
    return server


def outbox(server, user):
    query = (
        "SELECT primary_message_key AS key, synced, push_due_at_ms - now_ms() AS due, push_tries,"
        " lease_owner FROM dm_sync_outbox WHERE owner_login = %s ORDER BY 1"
    )
    return server.rows(query, [user.login])


def copies(server, user):
    query = "SELECT message_key, blob FROM signed_messages WHERE owner_login = %s AND NOT courier"
    return {r["message_key"]: bytes(r["blob"]) for r in server.rows(query, [user.login])}


async def synced(server, user, count):
    await eventually(
        lambda: [r["synced"] for r in outbox(server, user)] == [True] * count,
        f"{count} items to be acknowledged",
        20,
    )


# ---- two real servers ----


async def test_both_servers_of_both_have_everything(left, right, net):
    """Texts, an edit, a receipt and a deletion, sent at one server, reach the other, and neither
    offers back what it was brought."""
    alice = await net.user("alice", left, right)
    carol = await net.user("carol", right, left)
    at_left, at_right = await net.session(alice, left), await net.session(carol, right)
    carol_left = await net.session(carol, left)
    stamp = {"time_ms": 1_700_000_000_000, "nonce": 5}
    await at_left.send_pair(*alice.pair(carol, "one", **stamp))
    await at_left.send_pair(*alice.pair(carol, "one, better", revision=9, **stamp))
    await at_right.send_text(alice.login, "two")
    for session in (at_right, carol_left):
        await session.wait_event(
            "IncomingDirectMessage",
            lambda p: p["messageType"] == 1 and text_of(p) == "one, better",
        )
    for user in (alice, carol):
        await synced(left, user, 2)
        await eventually(lambda u=user: copies(left, u) == copies(right, u), "equal copies")
        assert len(copies(left, user)) == 2
        assert all(r["synced"] for r in outbox(right, user))


async def test_the_recipients_second_server_gets_a_copy(left, right, net):
    """bob writes from a server of his own; carol's message is handed on by the one that got it."""
    async with Scene(left, net).server("gamma", answers()) as gamma:
        bob = await net.user("bob", left, urls=[gamma.route])
        carol = await net.user("carol", right, known_to=(left,), urls=[(left.login, left.url)])
        await net.enter(bob, right)
        carol_left, carol_right = await net.session(carol, left), await net.session(carol, right)
        pair = bob.pair(carol, "to both")
        await (await net.connect(left)).send_pair(*pair)
        for session in (carol_left, carol_right):
            event = await session.wait_event("IncomingDirectMessage")
            assert unb64(event["blobB64"]) == pair[0]
        await synced(left, carol, 1)
        # bob's own pair goes to his second server.
        await gamma.asked("ReceiveOutcomingMessage")
        (push,) = [r for r in gamma.requests if r["op"] == "ReceiveOutcomingMessage"]
        assert set(push["payload"]) == {"incomingBlobB64", "outgoingBlobB64", "sourceServerLogin"}
        assert [unb64(push["payload"][k]) for k in ("incomingBlobB64", "outgoingBlobB64")] == [
            *pair
        ]
        assert push["payload"]["sourceServerLogin"] == "left"


async def test_a_message_waits_for_a_stopped_server(world, left, net):
    """The recipient's server is down at the first attempt and back at the second."""
    away = world.server("away", **SETTINGS)
    alice = await net.user("alice", left, known_to=(away,))
    bob = await net.user("bob", away, known_to=(left,))
    assert away.stop()
    at_alice = await net.session(alice)
    sent = await at_alice.send_text(bob.login, "patience")
    assert sent["deliveryState"] == "accepted"
    await attempted(left, sent["outgoingKey"], 2)
    away.start().ready()
    at_bob = await net.session(bob)
    later(left, SLOTS[2])
    left.rows("NOTIFY shine_due")
    row = await became(left, sent["outgoingKey"], "delivered")
    assert row["attempt_no"] == 2 and row["delivered_via"] == "away"
    assert text_of(await at_bob.wait_event("IncomingDirectMessage")) == "patience"
    event = await at_alice.wait_event("DmDeliveryStateChanged")
    assert event["deliveryState"] == "delivered"
    later(left, 0)
    assert away.stop()


async def test_a_recipient_who_comes_to_be_served_here(left, net):
    """What waited becomes his, with its event, and the sender hears of it: a text, and a deletion
    of another one."""
    scene = Scene(left, net)
    async with scene.server("gamma") as gamma:
        await scene.people(gamma)
        at_alice = await net.session(scene.alice)
        key = await scene.send("for whoever comes")
        doomed = await scene.send("doomed")
        buried = (await at_alice.delete_message({"messageKey": doomed}))["outgoingKey"]
        await attempted(left, buried, 2)
        access = ["--access", f"{left.login}={left.url}"]
        left.shinectl("user", "set-servers", scene.bob.login, *access)
        left.rows("NOTIFY shine_due")
        row = await became(left, key, "delivered")
        assert row["delivered_via"] == "left" and scene.calls("gamma") == [2]
        row = await became(left, buried, "delivered")
        assert row["delivered_via"] == "left"
        query = "SELECT count(*) FROM message_tombstones WHERE owner_login = %s"
        assert left.value(query, [scene.bob.login]) == 1
        event = await at_alice.wait_event("DmDeliveryStateChanged")
        assert event["deliveryState"] == "delivered"
        at_bob = await net.session(scene.bob, left)
        page = await at_bob.call("GetDirectMessages", {"withLogin": scene.alice.login})
        assert [text_of(x) for x in page["items"]] == ["for whoever comes"]
        query = "SELECT array_agg(right(message_key, 1) ORDER BY pts) FROM user_events WHERE owner_login = %s"
        assert sorted(left.value(query, [scene.bob.login])) == ["1", "5"]


# ---- pushes that fail ----


@pytest.fixture(scope="module")
def home(world):
    server = world.server(
        "home",
        delivery__firstReplyBudgetMs=200,
        delivery__tickMs=TICK_MS,
        server__pool__requestTimeoutSeconds=1,
        server__pool__connectTimeoutSeconds=2,
    )
    server.start_deliveryd()
    return server


async def pushed(server, user, tries):
    def probe():
        (row,) = outbox(server, user)
        over = row["push_tries"] >= tries and row["lease_owner"] is None
        return row if over else None

    return await eventually(probe, f"{tries} pushes to fail", 20)


async def test_pushes_are_repeated_and_then_left_to_the_pull(home, net):
    scene = Scene(home, net)
    async with scene.server("gamma", answers()) as gamma, scene.server("second") as second:
        await scene.people(gamma, second=second)
        client = await net.connect(home)
        await client.send_pair(*scene.alice.pair(scene.bob))
        passed = 0
        for tries, pause in enumerate((30_000, 300_000, 1_500_000, 3_600_000), 1):
            row = await pushed(home, scene.alice, tries)
            assert not row["synced"] and pause - 10_000 < row["due"] <= pause
            passed += pause
            later(home, passed)
        row = await pushed(home, scene.alice, 5)
        assert row["due"] is None and not row["synced"]
        assert second.ops().count("ReceiveOutcomingMessage") == 5
        later(home, 0)


async def test_a_push_that_succeeds_takes_the_others_along(home, net):
    scene = Scene(home, net)
    async with scene.server("gamma", answers()) as gamma, scene.server("second") as second:
        await scene.people(gamma, second=second)
        client = await net.connect(home)
        for n in range(5):
            await client.send_pair(*scene.alice.pair(scene.bob, f"text {n}"))
        await eventually(
            lambda: [r["push_tries"] for r in outbox(home, scene.alice)] == [1] * 5, "failures"
        )
        scene.does["second"] = answers()
        await client.send_pair(*scene.alice.pair(scene.bob, "the sixth"))
        await synced(home, scene.alice, 6)


@pytest.mark.parametrize("kind", ["busy", "silent"])
async def test_what_counts_as_a_push(home, net, kind):
    react = answers(503, "OVERLOADED", payload={"retryAfterMs": 100}) if kind == "busy" else never
    scene = Scene(home, net)
    async with scene.server("gamma", answers()) as gamma, scene.server("second", react) as second:
        await scene.people(gamma, second=second)
        await (await net.connect(home)).send_pair(*scene.alice.pair(scene.bob))
        await second.asked("ReceiveOutcomingMessage", 3 if kind == "busy" else 1)
        if kind == "busy":
            assert outbox(home, scene.alice)[0]["push_tries"] == 0
            scene.does["second"] = answers()
            await synced(home, scene.alice, 1)
        else:
            await pushed(home, scene.alice, 1)


async def test_the_first_attempt_goes_before_the_push(home, net):
    """The second server gets the pair when the first attempt is over, not before."""
    scene = Scene(home, net)
    async with scene.server("gamma") as gamma, scene.server("second", answers()) as second:
        await scene.people(gamma, second=second)

        async def slowly(server, ws, request):
            assert "ReceiveOutcomingMessage" not in second.ops()
            await answers()(server, ws, request)

        scene.does["gamma"] = in_turn(slowly)
        await (await net.connect(home)).send_pair(*scene.alice.pair(scene.bob))
        await synced(home, scene.alice, 1)
        assert scene.said == [
            ("gamma", "ReceiveIncomingMessage"),
            ("second", "ReceiveOutcomingMessage"),
        ]


async def test_housekeeping_offers_what_is_stored_to_a_new_second_server(world, net):
    """alice gets a second server: what she has goes by the pull, what comes now is pushed."""
    fresh = world.server("fresh", delivery__firstReplyBudgetMs=200, delivery__tickMs=TICK_MS)
    alice = await net.user("alice", fresh)
    client = await net.connect(fresh)
    for n in range(20):
        await client.send_pair(*alice.pair(alice, f"note {n}"))
    scene = Scene(fresh, net)
    async with scene.server("second", answers()) as second:
        access = ("--access", f"fresh={fresh.url}", "--access", f"second={second.url}")
        fresh.shinectl("user", "set-servers", alice.login, *access)
        await client.send_pair(*alice.pair(alice, "after the move"))
        fresh.start_deliveryd()
        await eventually(lambda: len(outbox(fresh, alice)) == 42, "all to be marked", 30)
        query = "SELECT count(*) FROM sync_leases WHERE mark_from IS NOT NULL"
        await eventually(lambda: fresh.value(query) == 0, "the mark to go")
        rows = outbox(fresh, alice)
        # The two copies of the last one are pushed; they may be marked again afterwards.
        assert sum(not r["synced"] and r["due"] is None for r in rows) >= 40
        await second.asked("ReceiveOutcomingMessage")
        assert len([x for x in second.ops() if x.startswith("Receive")]) <= 2
    assert fresh.stop()


async def test_all_types_go_by_their_operations(home, net):
    scene = Scene(home, net)
    async with scene.server("gamma", answers()) as gamma, scene.server(
        "second", answers()
    ) as second:
        await scene.people(gamma, second=second)
        alice, bob = scene.alice, scene.bob
        client = await net.connect(home)
        text = alice.pair(bob)
        await client.send_pair(*text)
        ref = dm.parse(text[0]).ref()
        delete = dm.delete(alice.login, bob.login, alice.key, ref)
        await client.call("DeleteMessage", {"blobB64": b64(delete)})
        clear = dm.clear(alice.login, bob.login, alice.key, 1000, for_both=False)
        await client.call("DeleteConversation", {"blobB64": b64(clear)})
        wanted = {"ReceiveOutcomingMessage", "DeleteMessage", "DeleteConversation"}
        await eventually(lambda: wanted <= set(second.ops()), "pushes")
