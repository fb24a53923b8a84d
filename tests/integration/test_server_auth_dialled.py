"""Whom a server accepts as the one that it dialled: every answerer here is called by the same
server, which has a key and knows those of all of them but two, and has a message for a user of each."""

import asyncio
import itertools
import os
import re
import subprocess

import pytest
from example_client import b64, public_b64, sign_text
from nacl.signing import SigningKey
from support.peers import FalsePeer, hello_answer
from support.server import SANITIZERS
from support.server_auth import (
    add_partner,
    answer_text,
    dial_text,
    fresh_nonce,
    signed,
    write_key,
)
from support.waiting import eventually

OURS, KEY, NEXT = (SigningKey(bytes([n]) * 32) for n in (5, 6, 7))
LISTED = ("connection-pool", "server-auth")


class Answerer(FalsePeer):
    """Answers hellos; `bend(parts)` returns what it says in the first answer beside the usual."""

    def __init__(self, login, certificate, bend, second=None):
        super().__init__(login, certificate, self._answer)
        self.bend, self.second = bend, second or hello_answer(login)
        self.challenge = ""

    def parts(self, hello):
        self.challenge = fresh_nonce()
        host = self.url.split("/")[2]
        return [self.login, hello["serverLogin"], hello["helloNonce"], self.challenge, host]

    async def _answer(self, request):
        if request["op"] != "ServerHello":
            return {}
        hello = request["payload"]
        if "proofB64" in hello:
            return self.second
        said = self.bend(self.parts(hello))
        if said is None:
            return {"status": 400, "error": "UNKNOWN_OP"}
        whole = hello_answer(self.login, *LISTED)
        whole["payload"].update({"challenge": self.challenge, **said})
        return whole

    def hellos(self):
        return [r["payload"] for r in self.requests if r["op"] == "ServerHello"]


def proof(key, parts, **bent):
    """The answer's proof; `bent` replaces parts of its text by position name."""
    names = ("answerer", "dialler", "nonce", "challenge", "host")
    return {"proofB64": sign_text(key, answer_text(*{**dict(zip(names, parts)), **bent}.values()))}


def honest(key=KEY):
    return lambda parts: proof(key, parts)


def reflecting(parts):
    """The text of the dialler's own side, signed by the right key."""
    answerer, dialler, nonce, challenge, host = parts
    return {"proofB64": sign_text(KEY, dial_text(dialler, answerer, nonce, challenge, host))}


RECORDED = fresh_nonce()

# login: what it does with the first hello
GOOD = {
    "honest": honest(),
    "changing": honest(NEXT),  # both of its keys are known
    "keyless": lambda _: {"challenge": None},  # no key of it is known
    "unknown": honest(SigningKey.generate()),
}
BAD = {
    "silent": (lambda _: {"challenge": None}, "server_not_proven"),
    "half": (lambda _: {}, "server_not_proven"),
    "legacy": (lambda _: None, "server_not_proven"),
    "unchallenging": (lambda p: {**proof(KEY, p), "challenge": None}, "server_not_proven"),
    "impostor": (honest(SigningKey.generate()), "bad_server_proof"),
    "reflecting": (reflecting, "bad_server_proof"),
    "replaying": (lambda p: proof(KEY, p, nonce=RECORDED), "bad_server_proof"),
    "relaying": (lambda p: proof(KEY, p, host="honest.example:443"), "bad_server_proof"),
    "relaying2": (lambda p: proof(KEY, p, answerer="honest"), "bad_server_proof"),
    "meddling": (lambda p: proof(KEY, p, dialler="gamma"), "bad_server_proof"),
    "garbage": (lambda _: {"proofB64": b64(bytes(64))}, "bad_server_proof"),
    "rude": (lambda _: {"proofB64": ["?"], "challenge": 7}, "server_not_proven"),
}
REFUSING = {"status": 403, "error": "BAD_SERVER_PROOF"}


@pytest.fixture
async def answerers(alpha):
    made = {name: Answerer(name, alpha.certificate, bend) for name, bend in GOOD.items()}
    made.update({name: Answerer(name, alpha.certificate, bend) for name, (bend, _) in BAD.items()})
    made["refusing"] = Answerer("refusing", alpha.certificate, honest(), second=REFUSING)
    for one in made.values():
        await one.__aenter__()
    yield made
    for one in made.values():
        await one.__aexit__()


async def deliver(net, server, peer):
    """Send something to a user of `peer`; the row as the first attempt has left it."""
    alice = await net.user("alice", server)
    bob = await net.user("bob", known_to=(server,), urls=[(peer.login, peer.url)])
    client = await net.connect(server)
    sent = await client.send_pair(*alice.pair(bob))
    return server.delivery(sent["outgoingKey"])


async def test_who_is_accepted_and_who_is_not(world, net, answerers):
    server = world.server(
        "careful",
        start=False,
        frontd__workers=1,
        delivery__firstReplyBudgetMs=20000,
        sync__importUserProfileFromPartner__enabled="off",
    )
    server.settings["server.keyFile"] = write_key(server.directory / "server.key", OURS)
    server.write_configuration()
    for name, peer in answerers.items():
        if name not in ("keyless", "unknown"):
            keys = [NEXT, KEY] if name == "changing" else [KEY]
            add_partner(server, name, *keys, url=peer.url)
    server.start().ready()

    for name in GOOD:
        peer = answerers[name]
        row = await deliver(net, server, peer)
        assert row["state"] == "delivered", (name, row)
        first, *second = peer.hellos()
        assert first["serverLogin"] == "careful" and "server-auth" in first["capabilities"]
        assert first["dialledHost"] == peer.url.split("/")[2]
        if name == "keyless":
            assert second == []  # it asked for nothing
            continue
        # Our proof, made for this meeting: it goes even to those of whom no key is known.
        ours = second[0].pop("proofB64")
        assert second == [first]
        text = dial_text(
            "careful", name, first["helloNonce"], peer.challenge, first["dialledHost"]
        )
        assert signed(public_b64(OURS), text, ours)

    reasons = {name: reason for name, (_, reason) in BAD.items()}
    for name, reason in {**reasons, "refusing": "proof_refused"}.items():
        peer = answerers[name]
        row = await deliver(net, server, peer)
        assert row["state"] == "accepted" and f"{name}: {reason}" in row["last_error"], (name, row)
        assert set(peer.ops()) == {"ServerHello"}  # it has been told nothing
        assert reason == "proof_refused" or len(peer.hellos()) == 1
    nonces = [h["helloNonce"] for p in answerers.values() for h in p.hellos()[:1]]
    assert len(set(nonces)) == len(nonces)
    await net.close()
    assert server.stop()


async def test_two_servers_that_know_each_other(world, net):
    keys = {"north": KEY, "south": NEXT}
    servers = {n: world.server(n, start=False, frontd__workers=1) for n in keys}
    for name, other in itertools.permutations(servers):
        servers[name].settings["server.keyFile"] = write_key(
            servers[name].directory / "server.key", keys[name]
        )
        servers[name].settings["server.auth"] = "require"
        servers[name].write_configuration()
        add_partner(servers[name], other, keys[other], url=servers[other].url)
    north, south = (servers[n].start().ready() for n in servers)
    alice = await net.user("alice", north, known_to=(south,))
    bob = await net.user("bob", south, known_to=(north,))
    for user, other, server in ((alice, bob, north), (bob, alice, south)):
        c = await net.connect(server)
        assert (await c.send_pair(*user.pair(other)))["deliveryState"] == "delivered"
    for server, other in ((north, "south"), (south, "north")):
        line = rf"event=peer_hello_proof peer={other} .*proven=1"
        assert re.search(line, server.log.read_text())
    # The one fetches what the other holds for a user of both; strangers get nothing of it.
    carol = await net.user("carol", north, south)
    await (await net.connect(north)).send_pair(*carol.pair(carol, "to myself"))
    stranger = await net.connect(north)
    answer = await stranger.start(
        "DmSyncBatch", {"ownerLogin": carol.login, "sourceServerLogin": "south"}
    )
    assert (answer.status, answer.error) == (403, "PEER_NOT_ACCESS_SERVER")
    argv = [str(south.bin_dir / "syncd"), "-c", str(south.config), "--once"]
    done = await asyncio.to_thread(
        subprocess.run, argv, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **SANITIZERS},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    query = "SELECT count(*) FROM signed_messages WHERE owner_login = %s"
    assert south.value(query, [carol.login]) == 2
    # What the one hands over is in the other's outbox as synced: it need not go back.
    sent = await (await net.connect(north)).send_pair(*carol.pair(carol, "again"))
    pusher = north.start_deliveryd()
    outbox = "SELECT synced FROM dm_sync_outbox WHERE primary_message_key = %s"
    key = [sent["outgoingKey"]]
    await eventually(lambda: north.value(outbox, key) is True, "the push to be acknowledged", 40)
    assert south.rows(outbox, key) == [{"synced": True}]
    assert north.stop_deliveryd(pusher)
    await net.close()
    assert north.stop() and south.stop()
