"""Sending to users of other servers: the first attempt, made inside the request."""

import asyncio
import json
import time

import lab
import pytest
import websockets
from example_client import pair_payload, text_of, unb64
from support.peers import FalsePeer, SilentServer, hello_answer
from support.waiting import eventually

FIRST_RETRY_MS = 30_000
BUDGET_MS = 700


@pytest.fixture(scope="module")
def sender(world):
    """A server whose clients wait 0.7 s for the recipient's servers."""
    return world.server("sender", delivery__firstReplyBudgetMs=BUDGET_MS)


def waits_for_its_retry(server, sent, *, error):
    """The row of a message whose first attempt brought nothing."""
    row = server.delivery(sent["outgoingKey"])
    assert row["state"] == "accepted" and row["attempt_no"] == 2
    assert row["due_after_ms"] == FIRST_RETRY_MS
    assert row["lease_owner"] is None and row["claims"] == 0
    assert error in row["last_error"], row["last_error"]
    return row


async def attempted(server, sent):
    """Wait until the first attempt has been recorded."""
    key = sent["outgoingKey"]
    await eventually(
        lambda: server.delivery(key)["lease_owner"] is None, "the first attempt to end", 45
    )


# ---- two real servers ----


async def test_a_message_reaches_the_recipients_server(alpha, beta, net):
    alice = await net.user("alice", alpha, known_to=(beta,))
    bob = await net.user("bob", beta, known_to=(alpha,))
    at_alice, at_bob = await net.session(alice), await net.session(bob)
    pair = alice.pair(bob, "over the wire")
    sent = await at_alice.send_pair(*pair)
    assert sent["deliveryState"] == "delivered"
    assert sent["deliveredWsSessions"] == 0  # nobody of the two is connected here but the asker

    got = await at_bob.wait_event("IncomingDirectMessage")
    assert unb64(got["blobB64"]) == pair[0] and got["pts"] == 1
    assert got["messageKey"] == sent["incomingKey"] and "deliveryState" not in got.payload

    row = alpha.delivery(sent["outgoingKey"])
    assert row["state"] == "delivered" and row["delivered_via"] == "beta"
    assert row["attempt_no"] == 1 and row["lease_owner"] is None and row["last_error"] is None

    # The sender's other devices learn both: the message, then its delivery.
    await at_alice.wait_pts(2)
    assert at_alice.pts() == [1, 2]
    stored, changed = at_alice.events
    assert stored.op == "IncomingDirectMessage" and stored["deliveryState"] == "accepted"
    assert changed.op == "DmDeliveryStateChanged"
    assert changed.payload == {
        "baseKey": sent["baseKey"],
        "outgoingKey": sent["outgoingKey"],
        "deliveryState": "delivered",
        "pts": 2,
    }
    # Who has what: alpha the author's copy and the courier's, beta the recipient's alone.
    query = "SELECT owner_login, message_type, courier FROM signed_messages WHERE base_key = %s"
    stored = {tuple(r.values()) for r in alpha.rows(query, [sent["baseKey"]])}
    assert stored == {(alice.login, 2, False), (bob.login, 1, True)}
    stored = {tuple(r.values()) for r in beta.rows(query, [sent["baseKey"]])}
    assert stored == {(bob.login, 1, False)}
    assert alpha.rows("SELECT 1 FROM user_events WHERE owner_login = %s", [bob.login]) == []


async def test_a_repeat_contacts_nobody(alpha, net):
    async def handler(request):
        return hello_answer("gamma") if request["op"] == "ServerHello" else {}

    async with FalsePeer("gamma", alpha.certificate, handler) as gamma:
        alice = await net.user("alice", alpha)
        bob = await net.user("bob", known_to=(alpha,), urls=[("gamma", gamma.url)])
        c = await net.connect(alpha)
        pair = alice.pair(bob)
        for _ in range(3):
            assert (await c.send_pair(*pair))["deliveryState"] == "delivered"
        assert gamma.ops() == ["ServerHello", "ReceiveIncomingMessage"]
        edit = alice.pair(bob, "better", revision=5)
        assert (await c.send_pair(*edit))["deliveryState"] == "delivered"
        assert gamma.ops().count("ReceiveIncomingMessage") == 2


async def test_both_directions_and_many_at_once(alpha, beta, net):
    alice = await net.user("alice", alpha, known_to=(beta,))
    bob = await net.user("bob", beta, known_to=(alpha,))
    at_alice, at_bob = await net.session(alice), await net.session(bob)
    pairs = [alice.pair(bob, f"a{n}") for n in range(60)]
    back = [bob.pair(alice, f"b{n}") for n in range(60)]
    pending = [at_alice.start("SendMessagePair", pair_payload(*p)) for p in pairs]
    pending += [at_bob.start("SendMessagePair", pair_payload(*p)) for p in back]
    answers = [a.result() for a in await asyncio.gather(*pending)]
    assert {a["deliveryState"] for a in answers} <= {"delivered", "accepted"}
    for server, sent in ((alpha, answers[:60]), (beta, answers[60:])):
        for a in sent:  # the budget may have ended first on a busy machine
            await attempted(server, a)
            assert server.delivery(a["outgoingKey"])["state"] == "delivered"
    for session, texts in ((at_bob, "a"), (at_alice, "b")):
        # Each user has 60 sent, 60 delivered and 60 received.
        await session.wait_pts(180, timeout=30)
        assert session.pts() == list(range(1, 181))
        got = {text_of(e) for e in session.events if e.payload.get("messageType") == 1}
        assert got == {f"{texts}{n}" for n in range(60)}


# ---- a recipient's server that is not there, hangs, or is not what it should be ----


async def test_a_server_that_is_down(world, sender, net):
    down = world.server("down")
    alice = await net.user("alice", sender, known_to=(down,))
    bob = await net.user("bob", down, known_to=(sender,))
    a = await net.session(alice)
    assert (await a.send_text(bob.login, "before"))["deliveryState"] == "delivered"
    assert down.stop()
    started = time.monotonic()
    sent = await a.send_text(bob.login, "while it is down")
    assert time.monotonic() - started < 3
    assert sent["deliveryState"] == "accepted"
    await attempted(sender, sent)
    waits_for_its_retry(sender, sent, error="down")
    again = await a.send_pair(*[bytes(r["blob"]) for r in sender.rows(
        "SELECT blob FROM signed_messages WHERE base_key = %s ORDER BY message_type",
        [sent["baseKey"]])])
    assert again["deliveryState"] == "accepted"
    down.start().ready()
    assert (await a.send_text(bob.login, "after"))["deliveryState"] in ("delivered", "accepted")
    await net.close()
    assert down.stop()


async def test_a_server_that_hangs_costs_the_budget_and_no_more(sender, net):
    async with SilentServer() as silent:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("silent", silent.url)])
        carol = await net.user("carol", sender)
        a = await net.session(alice)
        started = time.monotonic()
        sent = await a.send_text(bob.login, "anybody there?")
        took = time.monotonic() - started
        assert sent["deliveryState"] == "accepted"
        assert BUDGET_MS / 1000 - 0.05 <= took < BUDGET_MS / 1000 + 2
        row = sender.delivery(sent["outgoingKey"])
        assert row["leased"] and row["attempt_no"] == 1  # the attempt goes on
        assert silent.connections == 1
        # Nobody else waits for it.
        assert (await a.send_text(carol.login, "hi"))["deliveryState"] == "delivered"
    await attempted(sender, sent)
    waits_for_its_retry(sender, sent, error="silent")


async def test_a_success_after_the_budget_comes_as_an_event(sender, net):
    go_on = asyncio.Event()

    async def handler(request):
        if request["op"] == "ServerHello":
            return hello_answer("slow")
        await go_on.wait()
        return {}

    async with FalsePeer("slow", sender.certificate, handler) as slow:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("slow", slow.url)])
        a = await net.session(alice)
        sent = await a.send_text(bob.login, "take your time")
        assert sent["deliveryState"] == "accepted"
        go_on.set()
        event = await a.wait_event("DmDeliveryStateChanged")
        assert (event["outgoingKey"], event["deliveryState"]) == (sent["outgoingKey"], "delivered")
        assert sender.delivery(sent["outgoingKey"])["delivered_via"] == "slow"
        assert a.pts() == [1, 2]


async def test_two_routes_the_first_success_wins(sender, net):
    async def good(request):
        return hello_answer("good") if request["op"] == "ServerHello" else {}

    async with SilentServer() as silent, FalsePeer("good", sender.certificate, good) as peer:
        alice = await net.user("alice", sender)
        routes = [("silent", silent.url), ("good", peer.url)]
        bob = await net.user("bob", known_to=(sender,), urls=routes)
        a = await net.session(alice)
        started = time.monotonic()
        sent = await a.send_text(bob.login, "either")
        assert sent["deliveryState"] == "delivered"
        assert time.monotonic() - started < BUDGET_MS / 1000
        assert sender.delivery(sent["outgoingKey"])["delivered_via"] == "good"
        await eventually(lambda: silent.connections == 1, "the other route to be tried as well")


async def test_what_is_sent_to_the_recipients_server(sender, net):
    async def handler(request):
        return hello_answer("gamma") if request["op"] == "ServerHello" else {}

    async with FalsePeer("gamma", sender.certificate, handler) as gamma:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("gamma", gamma.url)])
        pair = alice.pair(bob)
        await (await net.connect(sender)).send_pair(*pair)
        hello, message = gamma.requests
        assert hello["op"] == "ServerHello" and hello["payload"]["serverLogin"] == "sender"
        assert hello["payload"]["protocolVersion"] == 1
        assert all(isinstance(c, str) for c in hello["payload"]["capabilities"])
        assert message["op"] == "ReceiveIncomingMessage" and message["requestId"]
        assert unb64(message["payload"]["incomingBlobB64"]) == pair[0]
        assert message["payload"]["sourceServerLogin"] == "sender"
        text = json.dumps(message)
        assert "deliver" not in text.lower(), "delivery state is never passed on"


async def test_an_old_server_gets_one_request_at_a_time(sender, net):
    """UNKNOWN_OP to the hello: a legacy connection."""
    open_requests, most = 0, 0

    async def handler(request):
        nonlocal open_requests, most
        if request["op"] == "ServerHello":
            return {"status": 400, "error": "UNKNOWN_OP"}
        open_requests += 1
        most = max(most, open_requests)
        await asyncio.sleep(0)
        open_requests -= 1
        return {}

    async with FalsePeer("old", sender.certificate, handler) as old:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("old", old.url)])
        c = await net.connect(sender)
        sends = [c.send_pair(*alice.pair(bob, str(n))) for n in range(20)]
        assert {a["deliveryState"] for a in await asyncio.gather(*sends)} == {"delivered"}
        assert most == 1 and old.ops().count("ReceiveIncomingMessage") == 20
        assert old.connections <= 2  # one per worker; the sends came over one connection
        assert old.ops().count("ServerHello") == old.connections


REFUSALS = [
    ({"status": 500, "error": "INTERNAL_ERROR"}, "500"),
    ({"status": 422, "error": "BAD_SIGNATURE"}, "BAD_SIGNATURE"),
    ({"status": 403, "error": "LOCAL_SERVER_NOT_ACCESS_SERVER"}, "LOCAL_SERVER_NOT_ACCESS_SERVER"),
    ({"status": 404, "error": "USER_NOT_FOUND"}, "USER_NOT_FOUND"),
    ({"status": 400, "error": "NO_SUCH_CODE_" + "X" * 500}, "NO_SUCH_CODE"),
]


@pytest.mark.parametrize("refusal,error", REFUSALS, ids=[r[0]["error"][:20] for r in REFUSALS])
async def test_a_refusal_uses_the_slot(sender, net, refusal, error):
    async def handler(request):
        return hello_answer("gamma") if request["op"] == "ServerHello" else refusal

    async with FalsePeer("gamma", sender.certificate, handler) as gamma:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("gamma", gamma.url)])
        sent = await (await net.connect(sender)).send_pair(*alice.pair(bob))
        assert sent["deliveryState"] == "accepted"
        await attempted(sender, sent)
        row = waits_for_its_retry(sender, sent, error=error)
        assert len(row["last_error"]) < 300
        assert gamma.ops().count("ReceiveIncomingMessage") == 1, "nobody repeats by himself"


async def test_a_busy_server_does_not_cost_the_slot(sender, net):
    async def handler(request):
        if request["op"] == "ServerHello":
            return hello_answer("busy")
        return {"status": 503, "error": "OVERLOADED", "payload": {"retryAfterMs": 7000}}

    async with FalsePeer("busy", sender.certificate, handler) as busy:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("busy", busy.url)])
        sent = await (await net.connect(sender)).send_pair(*alice.pair(bob))
        assert sent["deliveryState"] == "accepted"
        await attempted(sender, sent)
        row = sender.delivery(sent["outgoingKey"])
        assert row["state"] == "accepted" and row["attempt_no"] == 1
        assert 7000 <= row["due_after_ms"] < 20_000 and row["lease_owner"] is None


async def test_no_route_at_all_is_a_failed_attempt(sender, net):
    alice = await net.user("alice", sender)
    bob = await net.user("bob", known_to=(sender,), urls=[("gamma", "wss://127.0.0.1:1/ws")])
    query = "DELETE FROM user_access_servers_current WHERE login = %s"
    sender.rows(query, [bob.login])
    sent = await (await net.connect(sender)).send_pair(*alice.pair(bob))
    assert sent["deliveryState"] == "accepted"
    await attempted(sender, sent)
    row = sender.delivery(sent["outgoingKey"])
    assert row["attempt_no"] == 2 and row["due_after_ms"] == FIRST_RETRY_MS


async def test_an_answer_that_is_lost_is_a_failed_try(sender, net):
    """The peer may have stored the message; only asking again can tell."""

    async def handler(request):
        if request["op"] == "ServerHello":
            return hello_answer("gamma")
        raise websockets.ConnectionClosedError(None, None)  # ends the connection without an answer

    async with FalsePeer("gamma", sender.certificate, handler) as gamma:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("gamma", gamma.url)])
        sent = await (await net.connect(sender)).send_pair(*alice.pair(bob))
        assert sent["deliveryState"] == "accepted"
        await attempted(sender, sent)
        waits_for_its_retry(sender, sent, error="gamma")
        assert gamma.ops().count("ReceiveIncomingMessage") == 1, "the transport repeats nothing"


# ---- certificates and hellos ----


@pytest.mark.parametrize("kind", ["wrong name", "expired", "unknown authority"])
async def test_certificates_are_verified(world, sender, net, tmp_path, kind):
    if kind == "wrong name":
        certificate = world.authority.issue("wrong", hosts=["other.example", "127.0.0.2"])
    elif kind == "expired":
        certificate = world.authority.issue("expired", days=-1)
    else:
        certificate = lab.Authority(tmp_path / "ca").issue("stranger")
    asked = []

    async def handler(request):
        asked.append(request)
        return hello_answer("gamma") if request["op"] == "ServerHello" else {}

    async with FalsePeer("gamma", certificate, handler) as gamma:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("gamma", gamma.url)])
        sent = await (await net.connect(sender)).send_pair(*alice.pair(bob))
        assert sent["deliveryState"] == "accepted"
        await attempted(sender, sent)
        waits_for_its_retry(sender, sent, error="gamma: tls")
        assert asked == [], "nothing is said to somebody else"


HELLOS = {
    "another login": hello_answer("delta"),
    "refused": {"status": 403, "error": "PEER_NOT_ACCESS_SERVER"},
    "not accepted": {"payload": {"accepted": False, "serverLogin": "gamma", "protocolVersion": 1}},
}


@pytest.mark.parametrize("kind", HELLOS)
async def test_hellos_that_end_the_connection(sender, net, kind):
    async def handler(request):
        return HELLOS[kind] if request["op"] == "ServerHello" else {}

    async with FalsePeer("gamma", sender.certificate, handler) as gamma:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("gamma", gamma.url)])
        sent = await (await net.connect(sender)).send_pair(*alice.pair(bob))
        assert sent["deliveryState"] == "accepted"
        await attempted(sender, sent)
        waits_for_its_retry(sender, sent, error="gamma")
        assert set(gamma.ops()) == {"ServerHello"}


async def test_hellos_said_to_us(alpha, net):
    c = await net.connect(alpha)
    hello = {"serverLogin": "gamma", "protocolVersion": 1, "capabilities": ["dm-sync", "x-new"]}
    answer = await c.call("ServerHello", hello)
    assert answer["accepted"] is True and answer["serverLogin"] == "alpha"
    assert answer["protocolVersion"] == 1 and isinstance(answer["capabilities"], list)
    more = {"extra": [1], **hello, "capabilities": []}
    assert (await c.call("ServerHello", more))["accepted"] is True
    for bad in ({}, {**hello, "helloNonce": "bm9uY2U=", "dialledHost": "x:1"}):
        answer = await c.start("ServerHello", bad)
        assert (answer.status, answer.error) == (400, "BAD_FIELDS")
    assert await c.call("Ping", {"ts": 1}) == {"ts": 1}


async def test_a_peer_that_talks_nonsense(sender, net):
    """Texts that are no answers, answers to nothing, then the real one."""

    async def handler(request):
        return hello_answer("gamma") if request["op"] == "ServerHello" else {}

    class Babbler(FalsePeer):
        async def _serve(self, ws):
            stray = '{"op":"x","requestId":"1","status":200}'
            for text in ("", "[]", "{}", stray, "\x00", "x" * 99):
                await ws.send(text)
            await super()._serve(ws)

    async with Babbler("gamma", sender.certificate, handler) as gamma:
        alice = await net.user("alice", sender)
        bob = await net.user("bob", known_to=(sender,), urls=[("gamma", gamma.url)])
        sent = await (await net.connect(sender)).send_pair(*alice.pair(bob))
        await attempted(sender, sent)
        # Whether such a peer is endured or dropped is not fixed; that we survive it is.
        assert sender.delivery(sent["outgoingKey"])["state"] in ("delivered", "accepted")
