"""The first attempt under every fault of the recipient's servers, one and two of them: what the
sender is answered and when, what the row says, and who was sent what (support/attempt.py)."""

import asyncio
import contextlib
import re

import lab
import pytest
import shine_dm as dm
from example_client import b64, pair_payload
from support import fake_server as fake
from support.attempt import FIRST_RETRY_MS, Case, Fault, before, check_row, talks
from support.fake_server import FakeServer
from support.net import User
from support.waiting import eventually
from support.world import REPO

PATIENT_MS = 30_000  # longer than any attempt here lasts
HASTY_MS = 250
DEFAULT_MS = 3_000
SLACK_S = 2.5  # what a loaded machine may add to a wait


@pytest.fixture(scope="module")
def patient(world):
    """Its clients are answered when the attempt has ended."""
    server = world.server("patient", delivery__firstReplyBudgetMs=PATIENT_MS)
    yield server
    assert server.stop()


@pytest.fixture(scope="module")
def hasty(world):
    """Its clients are answered after a quarter of a second; its attempts end after two, or three
    while bytes come."""
    pool = {f"server__pool__{k}Seconds": 2 for k in ("requestTimeout", "connectTimeout")}
    pool["server__pool__callerTimeoutSeconds"] = 3
    server = world.server("hasty", delivery__firstReplyBudgetMs=HASTY_MS, **pool)
    yield server
    assert server.stop()


@pytest.fixture(scope="module")
def certificates(world, tmp_path_factory):
    """What a server can show, good and bad."""
    issue, stranger = world.authority.issue, lab.Authority(tmp_path_factory.mktemp("ca"))
    return {
        "good": issue("good"),
        "wrong name": issue("wrong-name", hosts=["other.example", "127.0.0.2"]),
        "expired": issue("expired", days=-1),
        "stranger": stranger.issue("stranger"),
    }


# ---- what a route can do, and what that is worth ----

ok, busy = fake.answers(), fake.answers(503, "OVERLOADED", {"retryAfterMs": 9_000})
other_id, no_id = fake.answers(requestId="p999999"), fake.answers(requestId="")

FAULTS = {
    "good": talks("delivered", "", ok),
    "201": talks("delivered", "", fake.answers(201)),
    "299 called an error": talks("delivered", "", fake.answers(299, "WHATEVER", ok=False)),
    "answers twice": talks("delivered", "", fake.in_turn(ok, ok)),
    "first yes, then no": talks("delivered", "", fake.in_turn(ok, fake.answers(500, "X"))),
    "yes to another id, then no": talks(
        "tried", "answered 422 BAD_SIGNATURE",
        fake.in_turn(other_id, no_id, fake.answers(422, "BAD_SIGNATURE")),
    ),
    "no to another id, then yes": talks(
        "delivered", "", fake.in_turn(fake.answers(500, "X", requestId="p999999"), ok)
    ),
    "an event with our id, then yes": talks(
        "delivered", "", fake.in_turn(fake.answers(500, "X", event=True), ok)
    ),
    "texts that are no answers, then yes": talks(
        "delivered", "", fake.in_turn(*map(fake.says, ("", "[]", "{}", "null", "\x00")), ok)
    ),
    # Not reached.
    "refuses": before("tried", "unreachable", tcp="refuses"),
    "resets": before("tried", "", tcp="resets"),
    "hangs up": before("tried", "", tcp="hangs_up"),
    "resets amid TLS": before("tried", "", tcp="tls_resets"),
    "hangs up amid TLS": before("tried", "", tcp="tls_hangs_up"),
    "speaks no TLS": before("tried", "tls", tcp="tls_garbage"),
    "wrong name": Fault("tried", "tls", certificate="wrong name"),
    "expired": Fault("tried", "tls", certificate="expired"),
    "unknown authority": Fault("tried", "tls", certificate="stranger"),
    "404 to the upgrade": before("tried", "upgrade", upgrade=404),
    "503 to the upgrade": before("tried", "upgrade", upgrade=503),
    # Not introduced.
    "refuses the hello": before("tried", "hello_refused", "H", hello=fake.answers(403, "NO")),
    "busy at the hello": before("tried", "hello_refused", "H", hello=busy),
    "resets at the hello": before("tried", "lost", "H", hello=fake.resets),
    "is another": before(
        "tried", "wrong_server_login", "H", hello=fake.answers(**fake.hello_answer("somebody"))
    ),
    # Asked, and no answer.
    "resets at the request": talks("tried", "lost", fake.resets),
    "hangs up at the request": talks("tried", "lost", fake.hangs_up),
    "closes at the request": talks("tried", "closed", fake.closes),
    "binary for an answer": talks("tried", "", fake.says(b"\x00\x01")),
    # Silence.
    "accepts in silence": before("open", "timeout", tcp="silent"),
    "silent amid TLS": before("open", "timeout", tcp="tls_silent"),
    "silent at the upgrade": before("open", "timeout", upgrade="silent"),
    "silent at the hello": before("open", "hello_timeout", "H", hello=fake.never),
    "never answers": talks("open", "timeout", fake.never),
    "chatters": talks("open", "timeout", fake.chatters),
    "answers another id only": talks("open", "timeout", fake.in_turn(other_id, no_id)),
    "answers without a status": talks("open", "timeout", fake.answers(status=None)),
    "its answer has status 1000": talks("open", "timeout", fake.answers(1000, "X")),
    # Not now.
    "busy": talks("given back", "answered 503 OVERLOADED", busy),
    "limits us": talks("given back", "answered 429", fake.answers(429, "RATE_LIMITED")),
}  # fmt: skip
SILENT = [name for name, fault in FAULTS.items() if fault.verdict == "open"]
SPEAKING = [name for name in FAULTS if name not in SILENT]


def wait_of(fault):
    return 9_000 if "OVERLOADED" in fault.error else 5_000  # retryAfterMs, or what we take for it


# ---- one route ----


@pytest.mark.parametrize("name", SPEAKING)
async def test_one_route(patient, net, certificates, name):
    """The answer comes when the attempt has ended, and says what it came to."""
    fault = FAULTS[name]
    async with Case(patient, net, certificates, fault) as case:
        answer = await case.send()
        assert case.took < PATIENT_MS / 1000 / 2
        state = "delivered" if fault.verdict == "delivered" else "accepted"
        assert answer["deliveryState"] == state
        row = case.row()
        check_row(row, fault.verdict, [f"gamma1: {fault.error}"], wait_of(fault))
        if state == "delivered":
            assert row["delivered_via"] == "gamma1"
        case.check_heard()
        assert case.fakes[0].connections == (0 if name == "refuses" else 1)
        assert case.told() == ([1, 2] if state == "delivered" else [1])
        # A repeat is answered from the row, whatever that says; nobody is asked.
        again = await case.client.send_pair(*case.pair)
        assert again["deliveryState"] == state
        assert case.row() == row
        case.check_heard()
        assert len(case.told()) == (2 if state == "delivered" else 1)


async def test_silence_costs_the_budget(hasty, net, certificates):
    """Every kind of silence at once. The attempts go on, and end by the pool's timeouts."""
    faults = [FAULTS[name] for name in SILENT]
    async with contextlib.AsyncExitStack() as opened:
        cases = [
            await opened.enter_async_context(Case(hasty, net, certificates, f)) for f in faults
        ]
        answers = await asyncio.gather(*(case.send() for case in cases))
        for case, answer in zip(cases, answers):
            assert answer["deliveryState"] == "accepted"
            assert HASTY_MS / 1000 <= case.took < HASTY_MS / 1000 + SLACK_S
        for case in cases:
            row = case.row()
            if row["lease_owner"] is not None:  # always, but for a machine that is very slow
                assert row["leased"] and row["attempt_no"] == 1
                assert row["due_after_ms"] == FIRST_RETRY_MS
            await eventually(lambda c=case: not c.row()["lease_owner"], "the attempt's end", 30)
            check_row(case.row(), "tried", [case.faults[0].error])
            case.check_heard()


async def test_the_default_budget(alpha, net, certificates):
    """Of two silent routes as of one: the client waits three seconds."""
    faults = FAULTS["accepts in silence"], FAULTS["never answers"]
    async with Case(alpha, net, certificates, *faults) as case:
        assert (await case.send())["deliveryState"] == "accepted"
        assert DEFAULT_MS / 1000 <= case.took < DEFAULT_MS / 1000 + SLACK_S
        assert case.row()["leased"]


# ---- every code ----

TABLE = re.findall(
    r"\[RPC_\w+\] = \{(\d+), \"(\w+)\"\}", (REPO / "common/rpc/error.c").read_text()
)
CODES = [(int(status), code) for status, code in TABLE]
UNKNOWN = [
    (0, "X"), (100, "CONTINUE"), (199, "X"), (300, "X"), (302, "MOVED"), (400, ""),
    (400, "SOMETHING_NEW"), (400, "not a code \u00e4 |"), (403, "BLOCKED"), (403, ""),
    (404, "LOCAL_SERVER_NOT_ACCESS_SERVER"), (418, "TEAPOT"), (428, "X"), (429, "SLOW_DOWN"),
    (430, "X"), (499, "X"), (500, "OVERLOADED"), (502, "X"), (503, "BACK_SOON"), (504, "X"),
    (599, "X"), (999, "X" * 1000),
]  # fmt: skip


def test_the_table_was_read():
    assert len(CODES) > 30 and (403, "LOCAL_SERVER_NOT_ACCESS_SERVER") in CODES


@pytest.mark.parametrize("status,code", CODES + UNKNOWN)
async def test_every_code(patient, net, certificates, status, code):
    """429 and 503 cost no slot; what else is no success does, and is repeated by the schedule."""
    moved = (status, code) == (403, "LOCAL_SERVER_NOT_ACCESS_SERVER")
    verdict = "given back" if status in (429, 503) else "tried"
    reason = f"gamma1: answered {status} {re.sub(r'[^A-Z0-9_]', '?', code)[:40]}"
    # One that does not serve the recipient is asked who does, and says the same.
    fault = talks(verdict, reason, fake.answers(status, code), "HRG" if moved else "HR")
    async with Case(patient, net, certificates, fault) as case:
        assert (await case.send())["deliveryState"] == "accepted"
        row = case.row()
        check_row(row, verdict, [reason], 5_000)
        assert len(row["last_error"]) < 200
        case.check_heard()


WAITS = {
    "named": (1_234, 1_234), "none": (0, 0), "an hour": (3_600_000, 60_000),
    "negative": (-1, 5_000), "a text": ("10", 5_000), "null": (None, 5_000),
}  # fmt: skip


@pytest.mark.parametrize("asked,waited", WAITS.values(), ids=WAITS)
async def test_how_long_a_busy_server_is_left_alone(patient, net, certificates, asked, waited):
    request = fake.answers(503, "OVERLOADED", {"retryAfterMs": asked})
    async with Case(patient, net, certificates, talks("given back", "", request)) as case:
        assert (await case.send())["deliveryState"] == "accepted"
        check_row(case.row(), "given back", ["503"], waited)


# ---- two routes ----

PAIRED = [
    "good", "refuses", "busy", "never answers", "resets at the request", "wrong name", "is another",
]  # fmt: skip
STATES = {name: FAULTS[name].verdict for name in PAIRED}


@pytest.mark.parametrize("second", PAIRED)
@pytest.mark.parametrize("first", PAIRED)
async def test_two_routes(patient, hasty, net, certificates, first, second):
    """The first success decides, and nobody waits for the other; without one, the slot is used if
    any of the two was tried."""
    verdicts = {STATES[first], STATES[second]}
    delivered, silent = "delivered" in verdicts, "open" in verdicts
    server = hasty if silent and not delivered else patient
    faults = [FAULTS[first], FAULTS[second]]
    async with Case(server, net, certificates, *faults) as case:
        answer = await case.send()
        if delivered:
            assert answer["deliveryState"] == "delivered" and case.took < PATIENT_MS / 1000 / 2
            row = case.row()
            check_row(row, "delivered")
            good = [f"gamma{n}" for n, f in enumerate(faults, 1) if f.verdict == "delivered"]
            assert row["delivered_via"] in good
            # Both were called, the slower one as well.
            for one, fault in zip(case.fakes, faults):
                if fault.heard == "HR":
                    await one.asked("ReceiveIncomingMessage")
        elif silent:
            assert answer["deliveryState"] == "accepted"
            assert HASTY_MS / 1000 <= case.took < HASTY_MS / 1000 + SLACK_S
            for one in case.fakes:
                one.hang_up()
            await eventually(lambda: not case.row()["lease_owner"], "the attempt's end", 30)
            check_row(case.row(), "tried")
        else:
            assert answer["deliveryState"] == "accepted"
            verdict = "tried" if "tried" in verdicts else "given back"
            errors = [f"gamma{n}: {fault.error}" for n, fault in enumerate(faults, 1)]
            check_row(case.row(), verdict, errors, 9_000)
        case.check_heard()
        assert case.told() == ([1, 2] if delivered else [1])


async def test_the_shorter_wait_counts(patient, net, certificates):
    long, short = (fake.answers(503, "BUSY", {"retryAfterMs": ms}) for ms in (40_000, 8_000))
    faults = [talks("given back", "503", request) for request in (long, short)]
    async with Case(patient, net, certificates, *faults) as case:
        assert (await case.send())["deliveryState"] == "accepted"
        check_row(case.row(), "given back", ["gamma1: answered 503", "gamma2: answered 503"], 8_000)


# ---- the other containers ----

KINDS = {
    "receipt": "ReceiveIncomingMessage",
    "deletion": "DeleteMessage",
    "clearing": "DeleteConversation",
}
SOME = ["good", "refuses", "resets at the request", "busy", "never answers"]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("kind", KINDS)
async def test_receipts_and_tombstones(patient, hasty, net, certificates, kind, name):
    """As a text; their results are nobody's events."""
    fault, op = FAULTS[name], KINDS[kind]
    server = hasty if fault.verdict == "open" else patient
    async with Case(server, net, certificates, fault) as case:
        alice, bob = case.alice, case.bob
        if kind == "receipt":
            blobs = dm.receipt_pair(alice.login, bob.login, alice.key, (1, 1))
            answer = await case.send(payload=pair_payload(*blobs))
            sent = {"incomingBlobB64": b64(blobs[0])}
        else:
            make, what = (dm.delete, (1, 1)) if kind == "deletion" else (dm.clear, 1)
            sent = {"blobB64": b64(make(alice.login, bob.login, alice.key, what))}
            answer = await case.send(op, sent)
        state = "delivered" if name == "good" else "accepted"
        assert answer["deliveryState"] == state
        if fault.verdict == "open":
            assert case.row()["leased"]
        else:
            check_row(case.row(), fault.verdict, [fault.error], wait_of(fault))
        wanted = [(op, {**sent, "sourceServerLogin": server.login})] if "R" in fault.heard else []
        asked = [(r["op"], r["payload"]) for r in case.fakes[0].requests[1:]]
        assert asked == wanted
        assert case.told() == [1]


# ---- four real servers ----


async def test_both_servers_up_then_one_then_none(world, patient, net):
    """The author's second server, known by name only, gets nothing; the recipient's two hold each
    message once."""
    east, west = world.server("east"), world.server("west")
    async with FakeServer("north", patient.certificate) as north:
        alice = await net.user("alice", patient, known_to=(east, west), urls=[north.route])
        bob = await net.user("bob", east, west, known_to=(patient,))
        a = await net.session(alice)

        async def send(*holders):
            sent = await a.send_text(bob.login, "hello")
            for server in holders:
                await eventually(lambda s=server: once(s, sent), f"it at {server.login}")
            return sent

        def once(server, sent):
            query = "SELECT count(*) FROM {} WHERE message_key = %s"
            tables = ("signed_messages", "user_events")
            counts = [server.value(query.format(t), [sent["incomingKey"]]) for t in tables]
            return counts == [1, 1]

        assert (await send(east, west))["deliveryState"] == "delivered"
        assert await asyncio.to_thread(west.stop)
        sent = await send(east)
        assert sent["deliveryState"] == "delivered"
        assert patient.delivery(sent["outgoingKey"])["delivered_via"] == "east"
        assert await asyncio.to_thread(east.stop)
        sent = await send()
        assert sent["deliveryState"] == "accepted"
        check_row(patient.delivery(sent["outgoingKey"]), "tried", ["east: ", "west: "])
        assert north.connections == 0


async def test_an_answer_lost_after_the_commit(patient, beta, net, certificates):
    """The recipient's server has the message, the sender cannot know: the slot is used, and what
    the schedule brings again is no second message."""
    async with FakeServer("beta", beta.certificate) as relay:
        relay.request = fake.in_turn(fake.relays(beta.url, beta.cafile), fake.resets)
        alice = await net.user("alice", patient, known_to=(beta,))
        bob = await net.user("bob", beta)
        await net.enter(User(bob.login, [relay.route], bob.key), patient)
        client, b = await net.connect(patient), await net.session(bob)
        pair = alice.pair(bob)
        sent = await client.send_pair(*pair)
        assert sent["deliveryState"] == "accepted"
        check_row(patient.delivery(sent["outgoingKey"]), "tried", ["beta: "])
        await b.wait_pts(1)
        again = {"incomingBlobB64": b64(pair[0]), "sourceServerLogin": "patient"}
        await (await net.connect(beta)).call("ReceiveIncomingMessage", again)
        query = "SELECT count(*) FROM {} WHERE owner_login = %s"
        for table in ("signed_messages", "user_events"):
            assert beta.value(query.format(table), [bob.login]) == 1
        assert relay.ops().count("ReceiveIncomingMessage") == 1


async def test_more_attempts_than_a_process_makes(world, net, certificates):
    """The one beyond the bound is handed over: due at once, nobody's lease, the slot not used."""
    server = world.server("narrow", frontd__workers=1, delivery__firstAttemptMaxInFlight=1)
    held = fake.in_turn(fake.waits, fake.answers())
    first, second = (Case(server, net, certificates, talks("open", "", held)) for _ in range(2))
    async with first, second:
        sending = asyncio.create_task(first.send())
        await first.fakes[0].asked("ReceiveIncomingMessage")
        assert (await second.send())["deliveryState"] == "accepted"
        check_row(second.row(), "given back", ["handed_over"], 0)
        assert second.fakes[0].connections == 0
        first.fakes[0].gate.set()
        await sending
        await eventually(lambda: first.row()["state"] == "delivered", "the first one's delivery")
    await net.close()
    assert await asyncio.to_thread(server.stop)
