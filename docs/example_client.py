"""A client of the SHiNE protocol: WebSocket connection, requests, sessions, direct messages.

It is written from docs/protocol.md alone and shares nothing with the server, so that it can be
read as an example of how to write a client, and so that the tests notice when server and document
differ. What the document promises about the envelope is checked on every text that arrives.

    alice = SigningKey.generate()
    async with await connect("wss://alpha.example/ws", cafile="ca.pem") as c:
        await c.create_session("alice", alice)
        answer = await c.send_text("bob", "hello")
        print(answer["deliveryState"])                      # accepted, delivered or failed
        event = await c.wait_event("IncomingDirectMessage")
        print(text_of(event))

Run by itself it sends a message and shows what comes back until it is interrupted:

    python3 docs/example_client.py wss://HOST/ws CAFILE KEYFILE LOGIN TO TEXT

(websockets, PyNaCl; the container is in shine_dm.py beside it.)

Requests may overlap: `start()` sends one and returns a future, `call()` waits for its answer.
Answers come in any order and are matched by `requestId`.
"""

import asyncio
import base64
import itertools
import json
import ssl
import sys
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Callable, Dict, List, Optional, Tuple

import websockets
from nacl.signing import SigningKey

import shine_dm

Payload = Dict[str, Any]

CALL_TIMEOUT = 20.0  # seconds; a server answers much earlier, or it is broken


class ShineError(Exception):
    """The server refused a request."""

    def __init__(
        self, status: int, error: str, message: str = "", payload: Optional[Payload] = None
    ):
        super().__init__(f"{status} {error}: {message}" if message else f"{status} {error}")
        self.status = status
        self.error = error
        self.message = message
        self.payload = payload or {}


class ProtocolError(Exception):
    """The server sent something that the protocol does not allow."""


class ConnectionClosed(ConnectionError):
    """The connection ended, with the WebSocket close code (1006: without a close frame)."""

    def __init__(self, code: int, reason: str):
        super().__init__(f"closed with {code} {reason}".rstrip())
        self.code = code
        self.reason = reason


@dataclass
class Answer:
    """One answer as it came, successful or not."""

    op: str
    request_id: str
    status: int
    ok: bool
    error: str
    message: str
    payload: Payload

    def result(self) -> Payload:
        """The payload of a success; a refusal is raised."""
        if not self.ok:
            raise ShineError(self.status, self.error, self.message, self.payload)
        return self.payload


@dataclass
class Event:
    op: str
    payload: Payload
    received_at: float = field(default_factory=time.monotonic)

    def __getitem__(self, name: str) -> Any:
        return self.payload[name]


# ---- small helpers ----


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def unb64(text: str) -> bytes:
    """Base64 with or without its padding."""
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def public_b64(key: SigningKey) -> str:
    return b64(key.verify_key.encode())


def sign_text(key: SigningKey, text: str) -> str:
    """Base64 of the signature over a text, as log-ins carry it."""
    return b64(key.sign(text.encode()).signature)


def now_ms() -> int:
    return int(time.time() * 1000)


def text_of(event_or_item: Any) -> str:
    """The text in an event or a history item, for messages that were sent unencrypted."""
    return shine_dm.parse(unb64(event_or_item["blobB64"])).text()


def tls_context(cafile: Optional[str]) -> ssl.SSLContext:
    """Certificates are always verified: against `cafile`, or the system's authorities."""
    return ssl.create_default_context(cafile=cafile)


# ---- payloads that are signed ----


def add_user_payload(
    login: str, key: SigningKey, servers: List[Tuple[str, str]], time_ms: Optional[int] = None
) -> Payload:
    """AddUser: a new account with its access servers [(serverLogin, url), …]."""
    stamp = now_ms() if time_ms is None else time_ms
    return {
        "login": login,
        "clientKey": public_b64(key),
        "accessServers": [{"serverLogin": name, "url": url} for name, url in servers],
        "timeMs": stamp,
        "signatureB64": sign_text(key, f"SHiNE_ADD_USER:{login}:{public_b64(key)}:{stamp}"),
    }


def enc_key_fields(login: str, key: SigningKey, enc_key: str) -> Payload:
    """The encryption key (Base64) of a user, signed; for AddUser and UpsertUserProfile."""
    return {
        "encKey": enc_key,
        "encKeySigB64": sign_text(key, f"SHiNE_ENC_KEY:{login}:{enc_key}"),
    }


def profile_payload(
    login: str,
    key: SigningKey,
    servers: List[Tuple[str, str]],
    time_ms: Optional[int] = None,
    enc_key: Optional[str] = None,
) -> Payload:
    """UpsertUserProfile: which servers are the user's, signed, so that any server may pass it on."""
    stamp = now_ms() if time_ms is None else time_ms
    where = ",".join(f"{name}={url}" for name, url in servers)
    signed = f"SHiNE_USER_PROFILE:{login}:{public_b64(key)}:{where}:{stamp}"
    return {
        "login": login,
        "clientKey": public_b64(key),
        "accessServers": [{"serverLogin": name, "url": url} for name, url in servers],
        "timeMs": stamp,
        "signatureB64": sign_text(key, signed),
        **(enc_key_fields(login, key, enc_key) if enc_key else {}),
    }


def create_session_payload(
    login: str,
    key: SigningKey,
    session_key: SigningKey,
    nonce: str,
    storage_pwd: str = "not-used",
    time_ms: Optional[int] = None,
    event_mode: Optional[str] = None,
) -> Payload:
    """CreateAuthSession: signed with the account's client key."""
    stamp = now_ms() if time_ms is None else time_ms
    public = "ed25519/" + public_b64(session_key)
    signed = f"AUTH_CREATE_SESSION:{login}:{public}:{storage_pwd}:{stamp}:{nonce}"
    payload = {
        "login": login,
        "sessionKey": public,
        "storagePwd": storage_pwd,
        "timeMs": stamp,
        "authNonce": nonce,
        "clientKey": public_b64(key),
        "signatureB64": sign_text(key, signed),
        "clientInfo": "example_client.py",
    }
    return payload if event_mode is None else {**payload, "eventMode": event_mode}


def session_login_payload(
    session_id: str,
    session_key: SigningKey,
    nonce: str,
    time_ms: Optional[int] = None,
    event_mode: Optional[str] = None,
) -> Payload:
    """SessionLogin: signed with the key of the session, which never leaves the device."""
    stamp = now_ms() if time_ms is None else time_ms
    payload = {
        "sessionId": session_id,
        "sessionKey": "ed25519/" + public_b64(session_key),
        "timeMs": stamp,
        "signatureB64": sign_text(session_key, f"SESSION_LOGIN:{session_id}:{stamp}:{nonce}"),
        "clientInfo": "example_client.py",
    }
    return payload if event_mode is None else {**payload, "eventMode": event_mode}


def setting_payload(
    login: str, key: SigningKey, name: str, value: str, time_ms: Optional[int] = None
) -> Payload:
    """UpsertUserSetting: the newest time wins; an empty value deletes."""
    stamp = now_ms() if time_ms is None else time_ms
    signed = f"SHiNE_USER_SETTING:{login}:{name}:{stamp}:{value}"
    return {
        "name": name,
        "value": value,
        "timeMs": stamp,
        "signatureB64": sign_text(key, signed),
    }


# ---- the connection ----


async def connect(url: str, cafile: Optional[str] = None, **options: Any) -> "Client":
    """Open a connection. `options` go to websockets.connect()."""
    if url.startswith("wss:"):
        options.setdefault("ssl", tls_context(cafile))
    options.setdefault("compression", None)  # the protocol does not use it
    return Client(await websockets.connect(url, max_size=None, **options))


class Client:
    """One connection. After create_session() or session_login() it belongs to a user."""

    def __init__(self, ws: Any):
        self.ws = ws
        self.login: Optional[str] = None
        self.key: Optional[SigningKey] = None
        self.session_id: Optional[str] = None
        self.session_key: Optional[SigningKey] = None
        self.events: List[Event] = []  # every event so far, in order
        self.unmatched: List[Answer] = []  # answers that nobody waited for
        self._unseen: List[Event] = []  # events not yet taken by wait_event()
        self._waiting: Dict[str, "deque[asyncio.Future[Answer]]"] = defaultdict(deque)
        self._ids = (f"r-{n}" for n in itertools.count(1))
        self._news = asyncio.Condition()
        self._failure: Optional[Exception] = None
        self._reader = asyncio.ensure_future(self._read())

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        await self.ws.close()
        await self._reader

    @property
    def closed(self) -> Optional[ConnectionClosed]:
        """How the connection ended, or None while it is open."""
        return self._failure if isinstance(self._failure, ConnectionClosed) else None

    # -- requests --

    def start(self, op: str, payload: Optional[Payload] = None) -> "asyncio.Future[Answer]":
        """Send a request without waiting; the future holds its Answer."""
        request_id = next(self._ids)
        request = {"op": op, "requestId": request_id, "payload": payload or {}}
        return self.raw_send(json.dumps(request, ensure_ascii=False), request_id)

    async def call(
        self, op: str, payload: Optional[Payload] = None, timeout: float = CALL_TIMEOUT
    ) -> Payload:
        """Send a request and return the payload of its answer, or raise ShineError."""
        answer = await asyncio.wait_for(self.start(op, payload), timeout)
        if answer.op != op:
            raise ProtocolError(f"asked {op}, answered {answer.op}")
        return answer.result()

    def raw_send(self, text: Any, request_id: str = "") -> "asyncio.Future[Answer]":
        """Send any text (or bytes, as a binary message). The future gets the next answer that
        carries `request_id`; an answer to what could not be read carries ""."""
        future: "asyncio.Future[Answer]" = asyncio.get_running_loop().create_future()
        if self._failure:
            future.set_exception(self._failure)
            return future
        self._waiting[request_id].append(future)
        asyncio.ensure_future(self._send(text))
        return future

    async def raw_call(
        self, text: Any, request_id: str = "", timeout: float = CALL_TIMEOUT
    ) -> Answer:
        return await asyncio.wait_for(self.raw_send(text, request_id), timeout)

    # -- events --

    async def wait_event(
        self,
        op: Optional[str] = None,
        predicate: Callable[[Payload], bool] = lambda _: True,
        timeout: float = CALL_TIMEOUT,
    ) -> Event:
        """The oldest event not yet taken that fits; waits for it if need be."""

        def taken() -> Optional[Event]:
            for event in self._unseen:
                if op in (None, event.op) and predicate(event.payload):
                    self._unseen.remove(event)
                    return event
            return None

        return await self._until(taken, timeout, f"no event {op or ''}")

    async def wait_pts(self, pts: int, timeout: float = CALL_TIMEOUT) -> None:
        """Wait until the event with this position, or a later one, has arrived."""
        await self._until(
            lambda: any(e.payload.get("pts", 0) >= pts for e in self.events) or None,
            timeout,
            f"no event with pts {pts}",
        )

    def pts(self) -> List[int]:
        """The positions of all events so far, in the order they came."""
        return [e["pts"] for e in self.events if "pts" in e.payload]

    async def wait_closed(self, timeout: float = CALL_TIMEOUT) -> ConnectionClosed:
        """Wait until the server has closed the connection, and tell how."""
        await asyncio.wait_for(asyncio.shield(self._reader), timeout)
        if not self.closed:
            raise self._failure or ProtocolError("the connection is still open")
        return self.closed

    # -- accounts and sessions --

    async def add_user(
        self, login: str, key: SigningKey, servers: List[Tuple[str, str]]
    ) -> Payload:
        return await self.call("AddUser", add_user_payload(login, key, servers))

    async def create_session(
        self,
        login: str,
        key: SigningKey,
        session_key: Optional[SigningKey] = None,
        **options: Any,
    ) -> Payload:
        """Make a session on this connection; `session_id` and `session_key` log in again later."""
        session_key = session_key or SigningKey.generate()
        nonce = (await self.call("AuthChallenge", {"login": login}))["authNonce"]
        payload = create_session_payload(login, key, session_key, nonce, **options)
        answer = await self.call("CreateAuthSession", payload)
        self.login, self.key = login, key
        self.session_id, self.session_key = answer["sessionId"], session_key
        return answer

    async def session_login(
        self,
        session_id: str,
        session_key: SigningKey,
        key: Optional[SigningKey] = None,
        **options: Any,
    ) -> Payload:
        """Log into a session made earlier. `key` is only needed to send."""
        nonce = (await self.call("SessionChallenge", {"sessionId": session_id}))["nonce"]
        payload = session_login_payload(session_id, session_key, nonce, **options)
        answer = await self.call("SessionLogin", payload)
        self.login, self.key = answer["login"], key
        self.session_id, self.session_key = session_id, session_key
        return answer

    # -- direct messages --

    def text_pair(self, to: str, text: Any, **stamps: Any) -> Tuple[bytes, bytes]:
        """The two signed copies of a text; `stamps` as for shine_dm.text_pair()."""
        return shine_dm.text_pair(self._me(), to, self.key, text, **stamps)

    async def send_pair(self, incoming: bytes, outgoing: bytes, **options: Any) -> Payload:
        return await self.call("SendMessagePair", pair_payload(incoming, outgoing), **options)

    async def send_text(self, to: str, text: Any, **stamps: Any) -> Payload:
        """Sign both copies of a text and send them; the text is not encrypted."""
        return await self.send_pair(*self.text_pair(to, text, **stamps))

    async def send_receipt(self, read: Any, **stamps: Any) -> Payload:
        """Tell the author of a text (an event or a history item) that it was read."""
        key = shine_dm.parse_key(read["messageKey"])
        ref = (key.time_ms, key.nonce)
        pair = shine_dm.receipt_pair(self._me(), key.from_, self.key, ref, **stamps)
        return await self.send_pair(*pair)

    async def delete_message(self, text: Any, for_both: bool = True, **stamps: Any) -> Payload:
        """Delete a text (an event or a history item), whoever wrote it."""
        key = shine_dm.parse_key(text["messageKey"])
        by_to = key.from_ != self.login
        other, ref = key.from_ if by_to else key.to, (key.time_ms, key.nonce)
        blob = shine_dm.delete(self._me(), other, self.key, ref, by_to, for_both, **stamps)
        return await self.call("DeleteMessage", {"blobB64": b64(blob)})

    async def delete_conversation(
        self, with_login: str, until_time_ms: int, for_both: bool = True, **stamps: Any
    ) -> Payload:
        """Delete every text of a conversation up to a time."""
        blob = shine_dm.clear(
            self._me(), with_login, self.key, until_time_ms, for_both, **stamps
        )
        return await self.call("DeleteConversation", {"blobB64": b64(blob)})

    async def conversations(self, limit: int = 200) -> AsyncIterator[Payload]:
        """Every conversation, newest first, page by page."""
        cursor: Payload = {}
        while True:
            page = await self.call("ListConversations", {"limit": limit, **cursor})
            for item in page["items"]:
                yield item
            if not page["hasMore"]:
                return
            last = page["items"][-1]
            cursor = {"beforeTimeMs": last["lastTimeMs"], "beforeLogin": last["withLogin"]}

    async def history(self, with_login: str, limit: int = 200) -> AsyncIterator[Payload]:
        """Every message of a conversation, newest first, page by page."""
        cursor: Payload = {}
        while True:
            ask = {"withLogin": with_login, "limit": limit, **cursor}
            page = await self.call("GetDirectMessages", ask)
            for item in page["items"]:
                yield item
            if not page["hasMore"]:
                return
            cursor = {
                "beforeTimeMs": page["nextBeforeTimeMs"],
                "beforeMessageKey": page["nextBeforeMessageKey"],
            }

    # -- settings --

    async def set_setting(self, name: str, value: str, time_ms: Optional[int] = None) -> Payload:
        """Store a setting of this user, signed; other devices get UserSettingChanged."""
        payload = setting_payload(self._me(), self.key, name, value, time_ms)
        return await self.call("UpsertUserSetting", payload)

    # -- inside --

    def _me(self) -> str:
        if self.login is None or self.key is None:
            raise ValueError("no user: create a session first, or sign with shine_dm")
        return self.login

    async def _send(self, text: Any) -> None:
        try:
            await self.ws.send(text)
        except websockets.ConnectionClosed:
            pass  # the reader tells everybody who waits

    async def _read(self) -> None:
        try:
            async for text in self.ws:
                self._take(text)
                async with self._news:
                    self._news.notify_all()
        except websockets.ConnectionClosed:
            pass
        except ProtocolError as e:
            self._failure = e
            await self.ws.close()
        if not self._failure:
            code = 1006 if self.ws.close_code is None else self.ws.close_code
            self._failure = ConnectionClosed(code, self.ws.close_reason or "")
        for future in itertools.chain.from_iterable(self._waiting.values()):
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # one that nobody waits for is no news
        async with self._news:
            self._news.notify_all()

    def _take(self, text: Any) -> None:
        message = parse_message(text)
        if isinstance(message, Event):
            self.events.append(message)
            self._unseen.append(message)
            return
        queue = self._waiting[message.request_id]
        while queue and queue[0].done():  # its caller gave up
            queue.popleft()
        if queue:
            queue.popleft().set_result(message)
        else:
            self.unmatched.append(message)

    async def _until(self, probe: Callable[[], Any], timeout: float, complaint: str) -> Any:
        async def wait() -> Any:
            async with self._news:
                while True:
                    found = probe()
                    if found is not None:
                        return found
                    if self._failure:
                        raise self._failure
                    await self._news.wait()

        try:
            return await asyncio.wait_for(wait(), timeout)
        except asyncio.TimeoutError:
            seen = [(e.op, e.payload.get("pts")) for e in self.events]
            raise TimeoutError(f"{complaint} within {timeout} s; seen: {seen}") from None


def pair_payload(incoming: bytes, outgoing: bytes) -> Payload:
    return {"incomingBlobB64": b64(incoming), "outgoingBlobB64": b64(outgoing)}


def parse_message(text: Any) -> Any:
    """An Answer or an Event; ProtocolError for anything else."""

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise ProtocolError(f"{what}: {text[:300]!r}")

    need(isinstance(text, str), "a binary message")
    try:
        m = json.loads(text)
    except ValueError:
        m = None
    need(isinstance(m, dict), "not a JSON object")
    need(isinstance(m.get("op"), str), "no op")
    need(isinstance(m.get("payload"), dict), "payload is not an object")
    status, ok = m.get("status"), m.get("ok")
    need(type(status) is int and type(ok) is bool, "no status or ok")
    need(ok == (200 <= status <= 299), "ok does not fit the status")
    if "event" in m:
        need(m["event"] is True and "requestId" not in m and ok, "a strange event")
        return Event(m["op"], m["payload"])
    need(isinstance(m.get("requestId"), str), "no requestId")
    need(ok or bool(m.get("error")), "a refusal without error code")
    need(not ok or "error" not in m, "a success with an error code")
    return Answer(
        m["op"], m["requestId"], status, ok, m.get("error", ""), m.get("message", ""), m["payload"]
    )


async def main(url: str, cafile: str, keyfile: str, login: str, to: str, text: str) -> None:
    with open(keyfile, encoding="ascii") as f:
        lines = dict(line.split() for line in f if line.strip())
    async with await connect(url, cafile) as client:
        await client.create_session(login, SigningKey(base64.b64decode(lines["secret"])))
        answer = await client.send_text(to, text)
        print(answer["deliveryState"], answer["outgoingKey"], flush=True)
        while True:
            event = await client.wait_event("IncomingDirectMessage", timeout=3600)
            print(event["fromLogin"], "→", event["toLogin"], text_of(event), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit("usage: example_client.py URL CAFILE KEYFILE LOGIN TO TEXT")
    asyncio.run(main(*sys.argv[1:]))
