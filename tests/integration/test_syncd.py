"""syncd --once between two real servers of one user: everything arrives, once, and what is wrong stops
nothing else."""

import pytest
from example_client import now_ms, text_of
from support.refusals import code, refused
from support.sync import sync_once
from support.waiting import eventually

OLD = 1_000_000  # a time of long ago


@pytest.fixture(scope="module")
def left(world):
    return world.server("left", delivery__firstReplyBudgetMs=200)


@pytest.fixture(scope="module")
def right(world):
    return world.server("right", delivery__firstReplyBudgetMs=200)


async def both_users(net, left, right):
    alice = await net.user("alice", left, right)
    bob = await net.user("bob", left, known_to=(right,))
    return alice, bob


async def texts(client, partner):
    return [text_of(item) async for item in client.history(partner.login)]


def copies(server, user):
    return server.rows(
        "SELECT message_key, digest, read_at_ms FROM signed_messages WHERE owner_login = %s"
        " AND NOT courier ORDER BY 1", [user.login])  # fmt: skip


async def test_everything_arrives_and_nothing_comes_back(left, right, net):
    alice, bob = await both_users(net, left, right)
    a, b = await net.session(alice, left), await net.session(bob, left)
    for n in range(120):
        await a.send_text(bob.login, f"to {n}", time_ms=OLD + n)
        await b.send_text(alice.login, f"from {n}", time_ms=OLD + n)
    got = [item async for item in a.history(bob.login)]
    read = next(item for item in got if item["messageType"] == 1)
    await a.send_receipt(read)
    await a.delete_message(got[-1], for_both=False)
    await a.delete_message(got[-2], for_both=True)
    await a.set_setting("theme", "dark")
    await a.set_setting("gone", "")
    status, out, log = await sync_once(right)
    assert status == 0, (out, log)
    assert f"{alice.login} from left: 2 settings, " in out
    assert copies(right, alice) == copies(left, alice) and len(copies(right, alice)) > 200
    there = await net.session(alice, right)
    assert await texts(there, bob) == await texts(a, bob)
    shown = {i["messageKey"]: i async for i in there.history(bob.login)}
    assert shown[read["messageKey"]]["readAtMs"] is not None
    settings = (await there.call("GetUserSettings"))["settings"]
    assert settings == (await a.call("GetUserSettings"))["settings"] and len(settings) == 2
    # What the left server knows to be delivered shows as delivered; nothing is sent to anybody.
    states = {i["deliveryState"] for i in shown.values() if i["messageType"] == 2}
    assert states == {"delivered"}
    waits = right.rows("SELECT right(outgoing_key, 2) AS type FROM dm_delivery_state"
                       " WHERE state <> 'delivered' ORDER BY 1")  # fmt: skip
    assert [row["type"] for row in waits] == ["|4", "|5"]  # made just now: they are delivered here, too
    left_over = left.value(
        "SELECT count(*) FROM dm_sync_outbox WHERE owner_login = %s AND NOT synced", [alice.login])  # fmt: skip
    assert left_over == 0
    assert not left.rows("SELECT 1 FROM user_settings WHERE NOT synced")
    for server in (left, right) * 5:
        status, out, log = await sync_once(server)
        assert status == 0 and ", 0 messages fetched, 0 refused" in out, (out, log)


async def test_pages_of_history_are_one_event_each_and_only_for_positions(left, right, net):
    alice, bob = await both_users(net, left, right)
    carol = await net.user("carol", left, known_to=(right,))
    a = await net.session(alice, left)
    live = await net.session(alice, right)
    positions = await net.session(alice, right, event_mode="pts")
    for n in range(130):  # more than one transaction holds
        await a.send_text((bob, carol)[n % 2].login, str(n), time_ms=OLD + n)
    status, out, log = await sync_once(right)
    assert status == 0, (out, log)
    event = await positions.wait_event("HistoryChanged")
    assert event.payload == {"withLogins": sorted([bob.login, carol.login]), "pts": 1}
    await live.call("Ping")
    assert live.events == [] and [e.op for e in positions.events] == ["HistoryChanged"]
    # A fresh message from somebody else is a delivery, wherever it comes from.
    b = await net.session(bob, left)
    await b.send_text(alice.login, "fresh")
    status, out, log = await sync_once(right)
    assert status == 0, (out, log)
    fresh = await live.wait_event("IncomingDirectMessage")
    assert text_of(fresh) == "fresh" and fresh["pts"] == 2


async def test_what_is_fresh_is_delivered_by_the_puller_too(left, right, net):
    alice = await net.user("alice", left, right)
    far = await net.user("far", urls=[("nobody", "wss://127.0.0.1:9/ws")], known_to=(left, right))
    a = await net.session(alice, left)
    old = await a.send_text(far.login, "old", time_ms=OLD)
    fresh = await a.send_text(far.login, "fresh", time_ms=now_ms() - 400_000)
    assert (await sync_once(right))[0] == 0
    rows = right.rows(
        "SELECT outgoing_key, state, attempt_no, next_attempt_at_ms <= now_ms() AS due"
        " FROM dm_delivery_state WHERE from_login = %s", [alice.login])  # fmt: skip
    assert [dict(row) for row in rows] == [
        {"outgoing_key": fresh["outgoingKey"], "state": "accepted", "attempt_no": 3, "due": True}]  # fmt: skip
    there = await net.session(alice, right)
    shown = {i["messageKey"]: i["deliveryState"] async for i in there.history(far.login)}
    assert shown == {old["outgoingKey"]: None, fresh["outgoingKey"]: "accepted"}


async def test_a_bad_item_stops_nothing_else(left, right, net):
    alice, bob = await both_users(net, left, right)
    a = await net.session(alice, left)
    sent = [await a.send_text(bob.login, str(n), time_ms=OLD + n) for n in range(5)]
    bad = sent[2]["outgoingKey"]
    original = left.value("SELECT blob FROM signed_messages WHERE message_key = %s", [bad])
    left.rows("UPDATE signed_messages SET blob = set_byte(blob, octet_length(blob) - 1,"
              " 255 - get_byte(blob, octet_length(blob) - 1)) WHERE message_key = %s", [bad])  # fmt: skip
    for count in (1, 2):
        status, out, _ = await sync_once(right)
        assert status == 3 and "1 refused" in out
        (reject,) = right.rows("SELECT * FROM dm_sync_rejects WHERE owner_login = %s", [alice.login])
        assert (reject["reason"], reject["count"]) == ("BAD_SIGNATURE", count)
        assert reject["peer"] == "left" and reject["sync_id"].startswith(bad)
    assert len(copies(right, alice)) == 4
    assert right.value("SELECT rejected FROM v_sync_backlog WHERE owner_login = %s", [alice.login]) == 1
    left.rows("UPDATE signed_messages SET blob = %s WHERE message_key = %s", [original, bad])
    assert (await sync_once(right))[0] == 0
    assert not right.rows("SELECT 1 FROM dm_sync_rejects")
    assert copies(right, alice) == copies(left, alice)


async def test_two_servers_that_were_apart_end_up_alike(left, right, net):
    alice, bob = await both_users(net, left, right)
    a, there = await net.session(alice, left), await net.session(alice, right)
    first = await a.send_text(bob.login, "first", time_ms=OLD, nonce=1)
    assert (await sync_once(right))[0] == 0
    # An edit on each side, other texts, other settings, the same setting.
    await a.send_pair(*alice.pair(bob, "left", time_ms=OLD, nonce=1, revision=5))
    await there.send_pair(*alice.pair(bob, "right", time_ms=OLD, nonce=1, revision=6))
    for n in range(3):
        await a.send_text(bob.login, f"left {n}", time_ms=OLD + n)
        await there.send_text(bob.login, f"right {n}", time_ms=OLD + n)
    start = now_ms()
    await a.set_setting("same", "left", start)
    await there.set_setting("same", "right", start + 1)
    await a.set_setting("only-left", "l")
    await there.set_setting("only-right", "r")
    for server in (left, right, left, right):
        status, out, log = await sync_once(server)
        assert status == 0, (out, log)
    assert copies(left, alice) == copies(right, alice)
    ours, theirs = [(await c.call("GetUserSettings"))["settings"] for c in (a, there)]
    assert ours == theirs
    assert {s["name"]: s["value"] for s in ours} == {
        "only-left": "l", "only-right": "r", "same": "right"}  # fmt: skip
    assert "right" in await texts(a, bob) and "left" not in await texts(a, bob)
    assert first["outgoingKey"]
    for server in (left, right):
        assert not server.rows("SELECT 1 FROM dm_sync_outbox WHERE owner_login = %s AND NOT synced",
                               [alice.login])  # fmt: skip


async def test_a_second_server_that_is_away(world, left, net):
    gone = world.server("gone")
    alice = await net.user("alice", left, gone)
    gone.stop()
    status, out, _ = await sync_once(left)
    assert status == 2 and f"{alice.login} from gone" in out and "not reached" in out
    (lease,) = left.rows("SELECT * FROM sync_leases WHERE owner_login = %s", [alice.login])
    assert lease["result"].startswith("not reached") and lease["lease_owner"] is None
    left.rows("UPDATE sync_leases SET due_at_ms = NULL WHERE owner_login = %s", [alice.login])
    left.shinectl("user", "set-servers", alice.login, "--access", f"left={left.url}")


async def test_settings_marked_unsynced_come_again(left, right, net):
    alice, _ = await both_users(net, left, right)
    a = await net.session(alice, left)
    await a.set_setting("s", "v")
    assert (await sync_once(right))[0] == 0
    right.rows("DELETE FROM user_settings WHERE login = %s", [alice.login])
    await a.call("MarkAllUserSettingsUnsynced")
    assert (await sync_once(right))[0] == 0
    there = await net.session(alice, right)
    assert [s["value"] for s in (await there.call("GetUserSettings"))["settings"]] == ["v"]
    assert code(await refused(there, "MarkAllUserSettingsUnsynced", {"login": 1})) == (
        400, "BAD_FIELDS")  # fmt: skip


async def test_a_new_second_server_and_one_that_lost_everything(left, right, net):
    """Housekeeping fills the outbox from what is stored, the puller fetches it."""
    alice = await net.user("alice", left)
    bob = await net.user("bob", left, known_to=(right,))
    a, b = await net.session(alice, left), await net.session(bob, left)
    for n in range(30):
        await a.send_text(bob.login, str(n), time_ms=OLD + n)
        await b.send_text(alice.login, str(n), time_ms=OLD + n)
    await a.set_setting("s", "v")
    alice.homes = [(left.login, left.url), (right.login, right.url)]
    await net.enter(alice, right)
    access = [arg for name, url in alice.homes for arg in ("--access", f"{name}={url}")]
    left.shinectl("user", "set-servers", alice.login, *access)
    async def filled():
        keeper = left.start_deliveryd()  # its housekeeping begins with its start
        await eventually(
            lambda: not left.rows("SELECT 1 FROM sync_leases WHERE mark_from IS NOT NULL"),
            "the outbox to be filled", 30)  # fmt: skip
        assert left.stop_deliveryd(keeper)

    await filled()
    status, out, log = await sync_once(right)
    assert status == 0, (out, log)
    assert copies(right, alice) == copies(left, alice) and len(copies(right, alice)) == 60
    there = await net.session(alice, right)
    assert [s["name"] for s in (await there.call("GetUserSettings"))["settings"]] == ["s"]
    # It loses everything of her.
    for table, column in (
        ("signed_messages", "owner_login"), ("dm_delivery_state", "from_login"),
        ("dm_sync_outbox", "owner_login"), ("conversations", "owner_login"),
        ("user_settings", "login"),
    ):  # fmt: skip
        right.rows(f"DELETE FROM {table} WHERE {column} = %s", [alice.login])
    assert f"{alice.login} from left: 0 settings, 0 messages" in (await sync_once(right))[1]
    assert await a.call("MarkAllUserSettingsUnsynced") == {"settingsUpdated": 1, "dmUpdated": 60}
    await filled()
    status, out, log = await sync_once(right)
    assert status == 0 and f"{alice.login} from left: 1 settings, 60 messages" in out, (out, log)
    assert copies(right, alice) == copies(left, alice)
