"""frontd stopped at exact points of a send: killed there, or frozen past its lease and continued.

    committed   the pair is stored, the worker has not heard of it
    written     the recipient's server has the request and has not looked at it
    stored      it has stored the message; its answer is not sent yet
    recording   its answer has come; the result waits in the database for a lock
    recorded    the result is stored, the worker has not heard of it

Nothing here is timed: locks in PostgreSQL and a relay before the recipient's server hold each thing
until the worker is stopped (SIGSTOP)."""

import asyncio
import os
import signal

import psycopg2
import pytest
from example_client import ConnectionClosed, b64, pair_payload
from support import fake_server as fake
from support.fake_server import FakeServer
from support.net import User
from support.waiting import eventually

LEASE_MS = 30_000
POINTS = ["committed", "written", "stored", "recording", "recorded"]


@pytest.fixture(scope="module")
def sender(world):
    """One worker, so that we know whom to stop. Clients wait for the end of the attempt."""
    server = world.server("sender", frontd__workers=1, delivery__firstReplyBudgetMs=60_000)
    yield server
    assert server.stop()


async def somebody_waits(server):
    """A process of this server waits for a lock."""
    query = """SELECT count(*) FROM pg_stat_activity
                WHERE datname = %s AND wait_event_type = 'Lock'"""
    await eventually(lambda: server.value(query, [server.database]), "somebody to wait")


class Scene:
    """alice of `sender` writes to bob of `beta`, by way of a relay that shows beta's name."""

    def __init__(self, sender, beta, net, request):
        self.sender, self.beta, self.net = sender, beta, net
        self.relay = FakeServer("beta", beta.certificate, request)

    async def __aenter__(self):
        await self.relay.__aenter__()
        second = ("second", "wss://127.0.0.1:1/ws")
        self.alice = await self.net.user("alice", self.sender, known_to=(self.beta,), urls=[second])
        self.bob = await self.net.user("bob", self.beta)
        await self.net.enter(User(self.bob.login, [self.relay.route], self.bob.key), self.sender)
        self.client = await self.net.session(self.alice)
        self.pair = self.alice.pair(self.bob)
        self.frozen = self.holder = None
        return self

    async def __aexit__(self, *exc):
        self.release()
        if self.frozen:
            self.thaw()
        await self.relay.__aexit__()
        self.sender.move_clock(0)
        # What a killed process leaves behind is held to the end of its lease.
        self.sender.rows("DELETE FROM dm_delivery_state WHERE from_login = %s", [self.alice.login])

    def freeze(self):
        (self.frozen,) = self.sender.workers()
        os.kill(self.frozen, signal.SIGSTOP)

    def thaw(self):
        os.kill(self.frozen, signal.SIGCONT)
        self.frozen = None

    async def kill(self):
        """kill -9 of all of frontd, and a new one."""
        self.sender.expect("worker")
        backends = set(self.sender.backends())
        os.kill(self.frozen, signal.SIGKILL)
        self.frozen = None
        self.sender.kill_master()
        with pytest.raises(ConnectionClosed):
            await self.answer
        self.release()
        self.relay.gate.set()
        # What it had sent to the database may still be done.
        await eventually(lambda: not backends & set(self.sender.backends()), "its connections' end")
        self.sender.start()
        await asyncio.to_thread(self.sender.ready)

    def hold(self, table, column):
        """Lock a row of alice's until release()."""
        self.holder = psycopg2.connect(self.sender.admin_conninfo)
        self.holder.cursor().execute(
            f"SELECT FROM {table} WHERE {column} = %s FOR UPDATE", [self.alice.login]
        )

    def release(self):
        if self.holder:
            self.holder.commit()
            self.holder.close()
            self.holder = None

    def by_another(self, change):
        """Another process changes the row; before us, if we wait for it."""
        query = f"UPDATE dm_delivery_state SET {change} WHERE from_login = %s"
        if self.holder:
            self.holder.cursor().execute(query, [self.alice.login])
            self.release()
        else:
            self.sender.rows(query, [self.alice.login])

    # -- to a point --

    async def stop_at(self, point):
        """Send, and freeze the worker there."""
        if point == "committed":
            self.hold("user_event_heads", "owner_login")
        self.answer = self.client.start("SendMessagePair", pair_payload(*self.pair))
        if point == "committed":
            await somebody_waits(self.sender)
            self.freeze()
            self.release()
            await eventually(self.row, "the commit")
            return
        await self.relay.asked("ReceiveIncomingMessage")
        if point == "stored":
            await eventually(lambda: self.relay.relayed, "beta's answer", 30)
        if point in ("recording", "recorded"):
            self.hold("dm_delivery_state", "from_login")
            self.relay.gate.set()
            await somebody_waits(self.sender)
        self.freeze()
        if point == "recorded":
            self.release()
            await eventually(lambda: self.row()["state"] == "delivered", "the result")

    # -- what is there --

    def row(self):
        query = """SELECT *, next_attempt_at_ms - accepted_at_ms AS due_after_ms,
                          lease_until_ms - accepted_at_ms AS lease_ms,
                          GREATEST(next_attempt_at_ms, lease_until_ms) <= now_ms() AS claimable
                     FROM dm_delivery_state WHERE from_login = %s"""
        rows = self.sender.rows(query, [self.alice.login])
        return rows[0] if rows else None

    def at_beta(self):
        """bob's copies and events there."""
        count = "(SELECT count(*) FROM {} WHERE owner_login = %(bob)s) AS {}"
        parts = count.format("signed_messages", "copies"), count.format("user_events", "events")
        query = f"SELECT {parts[0]}, {parts[1]}"
        (row,) = self.beta.rows(query, {"bob": self.bob.login})
        return row["copies"], row["events"]

    def check_complete(self):
        """All that the one commit stores."""
        query = """SELECT owner_login, message_type, courier FROM signed_messages
                    WHERE from_login = %s ORDER BY message_type"""
        copies = [tuple(r.values()) for r in self.sender.rows(query, [self.alice.login])]
        assert copies == [(self.bob.login, 1, True), (self.alice.login, 2, False)]
        query = "SELECT message_key, kind FROM user_events WHERE owner_login = %s ORDER BY pts"
        events = [tuple(r.values()) for r in self.sender.rows(query, [self.alice.login])]
        row = self.row()
        wanted = [(row["outgoing_key"], 1)]
        if row["state"] == "delivered":
            wanted += [(row["outgoing_key"], 2)]
        assert events == wanted
        (item,) = self.sender.rows(
            "SELECT * FROM dm_sync_outbox WHERE owner_login = %s", [self.alice.login]
        )
        assert item["primary_message_key"] == row["outgoing_key"] and not item["synced"]
        push_due = row["accepted_at_ms"] + LEASE_MS
        if row["state"] == "delivered":  # the attempt is over: the second server may have the pair
            push_due = min(push_due, row["updated_at_ms"])
        assert item["push_due_at_ms"] == push_due

    def check_due_on_time(self):
        """Leased to a process that may be dead; anybody's when the second slot comes."""
        row = self.row()
        assert row["state"] == "accepted" and row["attempt_no"] == 1 and row["claims"] == 0
        assert row["lease_owner"] and row["lease_ms"] == row["due_after_ms"] == LEASE_MS
        assert not row["claimable"]
        self.sender.move_clock(LEASE_MS)
        assert self.row()["claimable"]

    async def check_once_at_beta(self):
        """However often it is brought."""
        client = await self.net.connect(self.beta)
        incoming = {"incomingBlobB64": b64(self.pair[0]), "sourceServerLogin": "sender"}
        for _ in range(2):
            await client.call("ReceiveIncomingMessage", incoming)
        assert self.at_beta() == (1, 1)


def brings(beta, point):
    """The relay brings the message to beta, and holds it before or afterwards."""
    relays = fake.relays(beta.url, beta.cafile)
    steps = [fake.waits, relays] if point == "written" else [relays, fake.waits]
    return fake.in_turn(*steps, fake.gives_answer)


@pytest.mark.parametrize("point", POINTS)
async def test_killed(sender, beta, net, point):
    async with Scene(sender, beta, net, brings(beta, point)) as scene:
        await scene.stop_at(point)
        await scene.kill()
        scene.check_complete()
        state = scene.row()["state"]
        if point == "recorded":
            assert state == "delivered"
        elif point != "recording":
            assert state == "accepted"
        asked = [] if point == "committed" else ["ServerHello", "ReceiveIncomingMessage"]
        copies = 0 if point == "committed" else 1
        await eventually(lambda: scene.at_beta() == (copies, copies), "the message at beta")
        # The sender, who heard nothing, repeats: the state, and no second attempt beside the lease.
        again = await net.connect(sender)
        assert (await again.send_pair(*scene.pair))["deliveryState"] == state
        assert scene.relay.ops() == asked
        if state == "accepted":
            scene.check_due_on_time()
        await scene.check_once_at_beta()


CLAIMED = """lease_owner = 'another-process', lease_until_ms = now_ms() + 45000,
             row_version = row_version + 1"""


@pytest.mark.parametrize("claimed", [False, True], ids=["unclaimed", "claimed"])
@pytest.mark.parametrize("point", POINTS)
async def test_frozen_past_the_lease_and_then_delivered(sender, beta, net, point, claimed):
    """Meanwhile anybody may claim the row. A success is a fact whoever learnt it."""
    async with Scene(sender, beta, net, brings(beta, point)) as scene:
        await scene.stop_at(point)
        if point != "recorded":
            scene.check_complete()
            scene.check_due_on_time()
            if claimed:
                scene.by_another(CLAIMED)
        scene.release()
        scene.thaw()
        scene.relay.gate.set()
        answer = (await asyncio.wait_for(scene.answer, 30)).result()
        assert answer["deliveryState"] == "delivered"
        row = scene.row()
        assert row["state"] == "delivered" and row["delivered_via"] == "beta"
        assert row["lease_owner"] is None and row["next_attempt_at_ms"] is None
        scene.check_complete()
        await scene.client.wait_pts(2)
        assert scene.client.pts() == [1, 2]
        assert scene.relay.ops() == ["ServerHello", "ReceiveIncomingMessage"]
        assert scene.at_beta() == (1, 1)
        await scene.check_once_at_beta()


OTHERS = {
    # The moved clock is not seen by a statement that has begun.
    "nobody": ("lease_until_ms = lease_until_ms - 40000", "accepted"),
    "claims": (CLAIMED, "accepted"),
    "has failed too": (
        """lease_owner = NULL, lease_until_ms = NULL, row_version = row_version + 2,
           attempt_no = 3, next_attempt_at_ms = accepted_at_ms + 300000""",
        "accepted",
    ),
    "has delivered": (
        """lease_owner = NULL, lease_until_ms = NULL, row_version = row_version + 2,
           state = 'delivered', next_attempt_at_ms = NULL, delivered_via = 'beta'""",
        "delivered",
    ),
    "had the last attempt": (
        """lease_owner = NULL, lease_until_ms = NULL, row_version = row_version + 2,
           state = 'failed', attempt_no = 5, next_attempt_at_ms = NULL""",
        "failed",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("point", ["written", "recording"])
async def test_a_failure_that_comes_too_late_changes_nothing(sender, beta, net, point, other):
    change, state = OTHERS[other]
    script = fake.in_turn(fake.waits, fake.answers(500, "INTERNAL_ERROR"))
    async with Scene(sender, beta, net, script) as scene:
        await scene.stop_at(point)
        scene.check_due_on_time()
        scene.by_another(change)
        before = scene.row()
        scene.release()
        scene.thaw()
        scene.relay.gate.set()
        answer = (await asyncio.wait_for(scene.answer, 30)).result()
        assert answer["deliveryState"] == state
        assert scene.row() == {**before, "claimable": scene.row()["claimable"]}
        assert scene.relay.ops() == ["ServerHello", "ReceiveIncomingMessage"]
        assert scene.client.pts() == [1]
