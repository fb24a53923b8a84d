"""Servers prove who they are: what a server accepts as a proof, and for whom it takes the others.

Whom it believes shows in what it stores: an item that the owner's second server brings is born
synced, because that server has it already."""

import itertools
import subprocess

import pytest
import shine_dm as dm
from example_client import ShineError, b64, pair_payload, public_b64, sign_text
from nacl.signing import SigningKey
from support.server_auth import (
    Greeting,
    add_partner,
    answer_text,
    dial_text,
    fresh_nonce,
    host_of,
    prove,
    write_key,
)

GAMMA, OLD, NEW, FORT = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3, 4))
ALIAS = "fort.example:443"
_refs = itertools.count(1)


def fortress(world, name, **settings):
    """A server that knows keys of gamma (one) and epsilon (two), none of delta, and has blocked evil."""
    # The partners are not there to be asked about users.
    settings["sync__importUserProfileFromPartner__enabled"] = "off"
    server = world.server(name, start=False, **settings)
    key_file = write_key(server.directory / "server.key", FORT)
    server.settings.update(
        {"server.keyFile": key_file, "server.urlAliases": f"wss://{ALIAS.rpartition(':')[0]}/ws"}
    )
    server.write_configuration()
    add_partner(server, "gamma", GAMMA)
    add_partner(server, "epsilon", OLD, NEW)
    add_partner(server, "delta")
    add_partner(server, "evil", blocked=True)
    return server.start().ready()


@pytest.fixture(scope="module")
def fort(world):
    return fortress(world, "fort")


@pytest.fixture(scope="module")
def strict(world):
    return fortress(world, "strict", server__auth="require")


@pytest.fixture(scope="module")
def trusting(world):
    return fortress(world, "trusting", server__auth="trust")


async def synced(net, client, server, second, kind="pair", **said):
    """Is an item that comes over this connection taken for one of the server `second`?"""
    urls = [(server.login, server.url), (second, f"wss://{second}.example/ws")]
    alice = await net.user("alice", known_to=(server,), urls=urls)
    bob = await net.user("bob", server)
    ref = next(_refs)
    if kind == "pair":
        pair = alice.pair(bob)
        op, payload, key = "ReceiveOutcomingMessage", pair_payload(*pair), pair[1]
    elif kind == "incoming":
        key = bob.pair(alice)[0]
        op, payload = "ReceiveIncomingMessage", {"incomingBlobB64": b64(key)}
    elif kind == "deletion":
        key = dm.delete(alice.login, bob.login, alice.key, (ref, ref))
        op, payload = "DeleteMessage", {"blobB64": b64(key)}
    else:
        key = dm.clear(alice.login, bob.login, alice.key, ref)
        op, payload = "DeleteConversation", {"blobB64": b64(key)}
    await client.call(op, {**payload, **said})
    rows = server.rows(
        "SELECT synced FROM dm_sync_outbox WHERE owner_login = %s AND primary_message_key = %s",
        [alice.login, dm.parse(key).message_key()],
    )
    assert len(rows) == 1
    return rows[0]["synced"]


async def refused(client, payload):
    """The refusal of a hello."""
    with pytest.raises(ShineError) as e:
        await client.call("ServerHello", payload)
    return e.value.status, e.value.error


async def refused_for_good(client, payload):
    assert await refused(client, payload) == (403, "BAD_SERVER_PROOF")
    assert (await client.wait_closed()).code == 1008


# ---- believed ----


@pytest.mark.parametrize("kind", ["pair", "incoming", "deletion", "clearing"])
async def test_a_proven_server_is_the_source(fort, net, kind):
    c = await net.connect(fort)
    greeting = await prove(c, fort, "gamma", GAMMA)
    assert greeting.proven_by(public_b64(FORT)) and not greeting.proven_by(public_b64(GAMMA))
    assert "server-auth" in greeting.answer["capabilities"]
    assert await synced(net, c, fort, "gamma", kind) is True


async def test_the_source_is_who_proved_it_whatever_the_request_says(fort, net):
    c = await net.connect(fort)
    await prove(c, fort, "gamma", GAMMA)
    assert await synced(net, c, fort, "gamma", sourceServerLogin="delta") is True
    assert await synced(net, c, fort, "delta", sourceServerLogin="delta") is False


@pytest.mark.parametrize("key", [OLD, NEW], ids=["old", "new"])
async def test_either_key_of_a_server_that_changes_them(fort, net, key):
    c = await net.connect(fort)
    await prove(c, fort, "epsilon", key)
    assert await synced(net, c, fort, "epsilon") is True


async def test_a_server_without_a_known_key_is_taken_at_its_word(fort, net):
    c = await net.connect(fort)
    assert await synced(net, c, fort, "delta") is False
    assert await synced(net, c, fort, "delta", sourceServerLogin="delta") is True
    await c.call("ServerHello", {"serverLogin": "delta", "protocolVersion": 1})
    assert await synced(net, c, fort, "delta") is True
    # Nobody knows a key to compare its proof with.
    c = await net.connect(fort)
    await prove(c, fort, "stranger", SigningKey.generate())
    assert await synced(net, c, fort, "stranger") is True


async def test_an_alias_is_an_address_too(fort, net):
    c = await net.connect(fort)
    greeting = Greeting(fort, "gamma", host=ALIAS)
    await greeting.say(c)
    assert greeting.proven_by(public_b64(FORT))
    await c.call("ServerHello", greeting.second(GAMMA))
    assert await synced(net, c, fort, "gamma") is True


# ---- not believed, and not refused either: they are strangers like everybody ----


async def test_a_known_key_must_be_proven(fort, net):
    c = await net.connect(fort)
    assert await synced(net, c, fort, "gamma", sourceServerLogin="gamma") is False
    # The old way, the new way without an end, and both kinds of leaving server-auth out.
    for hello in (
        {"serverLogin": "gamma", "protocolVersion": 1},
        {"serverLogin": "gamma", "protocolVersion": 1, "capabilities": ["pipelining"]},
        Greeting(fort, "gamma").first,
    ):
        c = await net.connect(fort)
        assert (await c.call("ServerHello", hello))["accepted"] is True
        assert await synced(net, c, fort, "gamma") is False
        assert await synced(net, c, fort, "gamma", sourceServerLogin="gamma") is False


async def test_a_new_hello_ends_what_was_proven(fort, net):
    c = await net.connect(fort)
    await prove(c, fort, "gamma", GAMMA)
    await c.call("ServerHello", {"serverLogin": "gamma", "protocolVersion": 1})
    assert await synced(net, c, fort, "gamma") is False


async def test_a_user_is_no_server(fort, net):
    c = await net.session(await net.user("carol", fort))
    assert await synced(net, c, fort, "delta", sourceServerLogin="delta") is False


async def test_nobody_is_this_server(fort, net):
    c = await net.connect(fort)
    await c.call("ServerHello", {"serverLogin": fort.login, "protocolVersion": 1})
    answer = await c.start("DmSyncBatch", {"ownerLogin": (await net.user("dave", fort)).login})
    assert (answer.status, answer.error) == (403, "PEER_NOT_ACCESS_SERVER")


# ---- attacks ----


async def test_a_hello_meant_for_another_address(fort, net):
    """Relay: whoever is dialled by gamma under its own address passes the hello on to us."""
    for host in ("gamma.example:443", "fort.example:444", "127.0.0.1", "FORT.example:443"):
        c = await net.connect(fort)
        assert await refused(c, Greeting(fort, "gamma", host=host).first) == (403, "WRONG_HOST")
        assert await synced(net, c, fort, "gamma") is False
    # Having said who it is before does not help.
    c = await net.connect(fort)
    await c.call("ServerHello", {"serverLogin": "delta", "protocolVersion": 1})
    assert (await refused(c, Greeting(fort, "delta", host="x:1").first))[1] == "WRONG_HOST"
    assert await synced(net, c, fort, "delta") is False


BENT = {
    "for another answerer": {"answerer": "relay"},
    "of another dialler": {"dialler": "delta"},
    "with another nonce": {"nonce": fresh_nonce()},
    "with another challenge": {"challenge": fresh_nonce()},
    "for another host": {"host": ALIAS},
}


@pytest.mark.parametrize("bent", BENT.values(), ids=BENT.keys())
async def test_a_proof_of_something_else(fort, net, bent):
    c = await net.connect(fort)
    greeting = Greeting(fort, "gamma")
    await greeting.say(c)
    await refused_for_good(c, greeting.second(GAMMA, **bent))


async def test_the_key_of_somebody_else(fort, net):
    for key in (SigningKey.generate(), NEW, FORT):
        c = await net.connect(fort)
        greeting = Greeting(fort, "gamma")
        await greeting.say(c)
        await refused_for_good(c, greeting.second(key))


async def test_our_own_proof_given_back(fort, net):
    """Reflection: of what we have signed, and of gamma's own word for the other direction."""
    c = await net.connect(fort)
    greeting = Greeting(fort, "gamma")
    answer = await greeting.say(c)
    await refused_for_good(c, {**greeting.first, "proofB64": answer["proofB64"]})
    c = await net.connect(fort)
    greeting = Greeting(fort, "gamma")
    await greeting.say(c)
    dialler, answerer, nonce, challenge, host = greeting.parts()
    for text in (
        answer_text(dialler, answerer, nonce, challenge, host),
        answer_text(answerer, dialler, nonce, challenge, host),
    ):
        c = await net.connect(fort)
        greeting = Greeting(fort, "gamma")
        greeting.first["helloNonce"] = nonce
        await greeting.say(c)
        text = text.replace(challenge, greeting.answer["challenge"])
        await refused_for_good(c, {**greeting.first, "proofB64": sign_text(GAMMA, text)})


async def test_a_recorded_conversation(fort, net):
    """Replay: of both hellos, and of the second alone."""
    recorded = Greeting(fort, "gamma")
    first = await net.connect(fort)
    await recorded.say(first)
    second = recorded.second(GAMMA)
    await first.call("ServerHello", second)
    # Twice on the same connection: the challenge is used up.
    await refused_for_good(first, second)
    # The same nonce gets another challenge.
    c = await net.connect(fort)
    old = recorded.answer["challenge"]
    assert (await recorded.say(c))["challenge"] != old
    await refused_for_good(c, second)
    # Without a first hello, and after one without a nonce.
    await refused_for_good(await net.connect(fort), second)
    c = await net.connect(fort)
    await c.call("ServerHello", {"serverLogin": "gamma", "protocolVersion": 1})
    await refused_for_good(c, second)


CHANGED = {
    "login": {"serverLogin": "epsilon"},
    "nonce": {"helloNonce": fresh_nonce()},
    "host": {"dialledHost": ALIAS},
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED.keys())
async def test_a_second_hello_that_is_not_the_first_one(fort, net, changed):
    """Even if its proof fits what it says now."""
    c = await net.connect(fort)
    greeting = Greeting(fort, "gamma")
    await greeting.say(c)
    second = {**greeting.first, **changed}
    text = dial_text(
        second["serverLogin"], fort.login, second["helloNonce"],
        greeting.answer["challenge"], second["dialledHost"],
    )  # fmt: skip
    key = NEW if "serverLogin" in changed else GAMMA
    await refused_for_good(c, {**second, "proofB64": sign_text(key, text)})


async def test_proofs_that_are_none(fort, net):
    for proof in ("AAAA", "!", b64(bytes(64)), b64(b"\xff" * 64)):
        c = await net.connect(fort)
        greeting = Greeting(fort, "gamma")
        await greeting.say(c)
        await refused_for_good(c, {**greeting.first, "proofB64": proof})
    c = await net.connect(fort)
    for bad in (
        {"helloNonce": b64(bytes(31))},
        {"helloNonce": "a:b"},
        {"dialledHost": None},
        {"dialledHost": "x" * 264},
        {"proofB64": "A" * 89},
    ):
        hello = {**Greeting(fort, "gamma").first, **bad}
        assert await refused(c, hello) == (400, "BAD_FIELDS")


# ---- operations that depend on who asks ----


async def may_fetch(client, user, **said):
    answer = await client.start("DmSyncBatch", {"ownerLogin": user.login, **said})
    if answer.status == 200:
        return True
    assert (answer.status, answer.error) == (403, "PEER_NOT_ACCESS_SERVER")
    return False


async def test_only_the_proven_second_server_fetches(fort, net):
    urls = [("fort", fort.url), ("gamma", "wss://gamma.example/ws")]
    alice = await net.user("alice", known_to=(fort,), urls=urls)
    c = await net.connect(fort)
    assert not await may_fetch(c, alice)
    assert not await may_fetch(c, alice, sourceServerLogin="gamma")
    await c.call("ServerHello", {"serverLogin": "gamma", "protocolVersion": 1})
    assert not await may_fetch(c, alice)
    await prove(c, fort, "epsilon", NEW)
    assert not await may_fetch(c, alice)
    await prove(c, fort, "gamma", GAMMA)
    assert await may_fetch(c, alice)


# ---- blocked ----


async def test_a_blocked_server_is_refused(fort, net):
    c = await net.connect(fort)
    assert await refused(c, {"serverLogin": "evil", "protocolVersion": 1}) == (403, "PEER_BLOCKED")
    nonsense = {"incomingBlobB64": "AAAA", "outgoingBlobB64": "AAAA", "blobB64": "AAAA"}
    for op in (
        "ReceiveOutcomingMessage", "ReceiveIncomingMessage", "DeleteMessage", "DeleteConversation",
    ):  # fmt: skip
        answer = await c.start(op, {**nonsense, "sourceServerLogin": "evil"})
        assert (answer.status, answer.error) == (403, "PEER_BLOCKED")
        answer = await c.start(op, nonsense)
        assert (answer.status, answer.error) == (400, "BAD_BLOB")


# ---- server.auth ----


async def test_require_believes_proofs_alone(strict, net):
    c = await net.connect(strict)
    assert await synced(net, c, strict, "delta", sourceServerLogin="delta") is False
    await c.call("ServerHello", {"serverLogin": "delta", "protocolVersion": 1})
    assert await synced(net, c, strict, "delta") is False
    await prove(c, strict, "stranger", SigningKey.generate())
    assert await synced(net, c, strict, "stranger") is False
    await prove(c, strict, "gamma", GAMMA)
    assert await synced(net, c, strict, "gamma") is True


async def test_trust_believes_everybody_but_liars(trusting, net):
    c = await net.connect(trusting)
    assert await synced(net, c, trusting, "gamma", sourceServerLogin="gamma") is True
    await c.call("ServerHello", {"serverLogin": "gamma", "protocolVersion": 1})
    assert await synced(net, c, trusting, "gamma") is True
    greeting = Greeting(trusting, "gamma")
    await greeting.say(c)
    await refused_for_good(c, greeting.second(NEW))
    c = await net.connect(trusting)
    assert (await refused(c, {"serverLogin": "evil"}))[1] == "PEER_BLOCKED"


# ---- without a key, without an address ----


async def test_a_server_without_a_key_still_judges(alpha, net):
    c = await net.connect(alpha)
    greeting = Greeting(alpha, "stranger")
    answer = await greeting.say(c)
    assert "proofB64" not in answer and "server-auth" not in answer["capabilities"]
    assert (await c.call("ServerHello", greeting.second(SigningKey.generate())))["accepted"] is True
    assert host_of(alpha) == greeting.first["dialledHost"]


def test_key_files_are_checked_at_the_start(fort):
    bad = fort.directory / "bad.key"
    for text, complaint in (
        ("", "no line"),
        (f"secret {b64(bytes(32))}\npublic {public_b64(NEW)}\n", "does not belong"),
    ):
        bad.write_text(text)
        argv = [str(fort.bin_dir / "frontd"), "-c", str(fort.config), "--check-config"]
        argv += ["--set", f"server.keyFile={bad}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert "server.keyFile" in done.stderr and complaint in done.stderr
        assert str(bad) in done.stderr and b64(bytes(32)) not in done.stderr
