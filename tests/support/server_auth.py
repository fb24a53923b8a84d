"""Proofs of servers, made independently of the server: what docs/protocol.md says and no more."""

import os
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from example_client import Client, Payload, b64, public_b64, sign_text, unb64
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from .server import WatchedServer


def fresh_nonce() -> str:
    return b64(os.urandom(32))


def host_of(server: WatchedServer) -> str:
    return f"127.0.0.1:{server.port}"


def answer_text(answerer: str, dialler: str, nonce: str, challenge: str, host: str) -> str:
    return f"SHiNE_SERVER_AUTH:answer:{answerer}:{dialler}:{nonce}:{challenge}:{host}"


def dial_text(dialler: str, answerer: str, nonce: str, challenge: str, host: str) -> str:
    return f"SHiNE_SERVER_AUTH:dial:{dialler}:{answerer}:{nonce}:{challenge}:{host}"


def signed(public_b64_: str, text: str, signature_b64: str) -> bool:
    try:
        VerifyKey(unb64(public_b64_)).verify(text.encode(), unb64(signature_b64))
        return True
    except BadSignatureError:
        return False


def write_key(path: Path, key: SigningKey) -> Path:
    """A key file as `shinectl keygen` prints it."""
    path.write_text(f"secret {b64(key.encode())}\npublic {public_b64(key)}\n")
    return path


def add_partner(
    server: WatchedServer,
    login: str,
    *keys: SigningKey,
    url: str = "wss://nowhere.invalid/ws",
    blocked: bool = False,
) -> None:
    """A row of sync_servers. A server that runs reads it within half a minute."""
    server.rows(
        "INSERT INTO sync_servers (server_login, url, public_keys, blocked, updated_at_ms)"
        " VALUES (%s, %s, %s, %s, now_ms())",
        [login, url, [public_b64(k) for k in keys], blocked],
    )


class Greeting:
    """The two hellos of a server that dials `server`, each of which may be bent."""

    def __init__(self, server: WatchedServer, login: str, host: Optional[str] = None):
        self.server, self.login = server, login
        self.first: Payload = {
            "serverLogin": login,
            "protocolVersion": 1,
            "capabilities": ["server-auth"],
            "helloNonce": fresh_nonce(),
            "dialledHost": host or host_of(server),
        }
        self.answer: Payload = {}

    async def say(self, client: Client) -> Payload:
        self.answer = await client.call("ServerHello", self.first)
        return self.answer

    def parts(self, **bent: str) -> Tuple[str, str, str, str, str]:
        """dialler, answerer, nonce, challenge, host."""
        parts = {
            "dialler": self.login,
            "answerer": self.server.login,
            "nonce": self.first["helloNonce"],
            "challenge": self.answer["challenge"],
            "host": self.first["dialledHost"],
            **bent,
        }
        return (
            parts["dialler"], parts["answerer"], parts["nonce"], parts["challenge"], parts["host"],
        )  # fmt: skip

    def second(self, key: SigningKey, **bent: str) -> Payload:
        return {**self.first, "proofB64": sign_text(key, dial_text(*self.parts(**bent)))}

    def proven_by(self, public: str) -> bool:
        """Is the answer the proof of that key?"""
        dialler, answerer, nonce, challenge, host = self.parts()
        text = answer_text(answerer, dialler, nonce, challenge, host)
        return signed(public, text, self.answer["proofB64"])


async def prove(client: Client, server: WatchedServer, login: str, key: SigningKey) -> Greeting:
    """The whole conversation of an honest server."""
    greeting = Greeting(server, login)
    await greeting.say(client)
    answer: Dict[str, Any] = await client.call("ServerHello", greeting.second(key))
    assert answer["accepted"] is True
    return greeting
