"""A server that does what a script says: for everything another access server can do to us.

    front   accepts TCP: here it refuses, resets, hangs or hangs up, before and amid TLS
    inner   a WebSocket server behind it: here it is silent or rude in HTTP, in ServerHello, and in
            the answers to requests

The front passes bytes on, so it can break a connection at any moment of the conversation above it.
Everything that was said is recorded in `requests`, and `connections` counts who came at all.
"""

import asyncio
import json
import shutil
import socket
import ssl
import struct
import tempfile
from http import HTTPStatus
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, Optional

import example_client
import websockets

from .peers import answer, hello_answer
from .waiting import eventually

Request = Dict[str, Any]
Reaction = Callable[["FakeServer", Any, Request], Awaitable[None]]

CHUNK = 1 << 16


# ---- what it does with a request ----


def answers(
    status: Optional[int] = 200, error: str = "", payload: Any = None, **rest: Any
) -> Reaction:
    """Answer with this status (None: without one); `rest` replaces members of the envelope."""
    head: Dict[str, Any] = {"status": status, **({"error": error} if error else {})}

    async def react(_: "FakeServer", ws: Any, request: Request) -> None:
        whole = {**answer(request, status or 0, payload=payload or {}), **head, **rest}
        await ws.send(json.dumps(whole))

    return react


def in_turn(*reactions: Reaction) -> Reaction:
    """All of them, one after the other, for each request."""

    async def react(server: "FakeServer", ws: Any, request: Request) -> None:
        for reaction in reactions:
            await reaction(server, ws, request)

    return react


def says(message: Any) -> Reaction:
    """Something that is no answer: a text, or bytes for a binary message."""

    async def react(_: "FakeServer", ws: Any, __: Request) -> None:
        await ws.send(message)

    return react


async def never(_: "FakeServer", __: Any, ___: Request) -> None:
    """Take the request and say nothing."""


async def chatters(_: "FakeServer", ws: Any, __: Request) -> None:
    """Talk for as long as the connection lasts, and never answer."""
    while True:
        await ws.send('{"op":"Chatter","event":true,"status":200,"ok":true,"payload":{}}')
        await asyncio.sleep(0.2)


async def resets(server: "FakeServer", _: Any, __: Request) -> None:
    """Break the connection by a TCP reset."""
    server.reset()


async def hangs_up(server: "FakeServer", _: Any, __: Request) -> None:
    """End the connection by closing the socket, without a word of WebSocket or TLS."""
    server.hang_up()


async def closes(_: "FakeServer", ws: Any, __: Request) -> None:
    """End the connection in order."""
    await ws.close(1011, "not today")


async def waits(server: "FakeServer", _: Any, __: Request) -> None:
    """Go on when the test says so: server.gate.set()."""
    await server.gate.wait()


def relays(url: str, cafile: Any) -> Reaction:
    """Ask the real server at `url` and keep its answer for `gives_answer`."""

    async def react(server: "FakeServer", _: Any, request: Request) -> None:
        async with await example_client.connect(url, str(cafile)) as client:
            real = await client.start(request["op"], request["payload"])
        rest = {"error": real.error} if real.error else {}
        whole = answer(request, real.status, payload=real.payload, **rest)
        server.relayed[request["requestId"]] = json.dumps(whole)

    return react


async def gives_answer(server: "FakeServer", ws: Any, request: Request) -> None:
    """Send what the real server answered."""
    await ws.send(server.relayed.pop(request["requestId"]))


# ---- the server ----


class FakeServer:
    """A server called `login`, with the certificate it shows. By default it behaves; what is given
    replaces one part of that.

    `tcp`      refuses, resets, hangs_up, silent: on accepting, or refusing to
               tls_resets, tls_hangs_up, tls_silent, tls_garbage: after the first bytes of TLS
    `upgrade`  a status that refuses the upgrade, or "silent"
    `hello`, `request`  what it does with ServerHello, and with every other request
    """

    def __init__(
        self,
        login: str,
        certificate: Any,
        request: Reaction = answers(),
        tcp: str = "",
        upgrade: Any = None,
        hello: Optional[Reaction] = None,
    ):
        self.login, self.tcp, self.upgrade = login, tcp, upgrade
        self.hello = hello or answers(**hello_answer(login))
        self.request = request
        self.requests: List[Request] = []
        self.connections = 0
        self.gate = asyncio.Event()
        self._ended = asyncio.Event()
        self.relayed: Dict[str, str] = {}
        self.url = ""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.cert, certificate.key)
        self._directory = tempfile.mkdtemp(prefix="shine-fake-")
        self._listener = socket.socket()
        self._front: Any = None
        self._inner: Any = None
        self._open: List[asyncio.StreamWriter] = []
        self._tasks: List["asyncio.Task[None]"] = []

    async def __aenter__(self) -> "FakeServer":
        inner = str(Path(self._directory) / "inner")
        self._inner = await websockets.unix_serve(
            self._converse,
            inner,
            ssl=self._context,
            max_size=None,
            compression=None,
            process_request=self._upgrade,
            close_timeout=0.1,
        )
        # Bound and not listening, a port refuses, and nobody else can have it meanwhile.
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"wss://127.0.0.1:{self._listener.getsockname()[1]}/ws"
        if self.tcp != "refuses":
            self._front = await asyncio.start_server(
                lambda r, w: self._accept(r, w, inner), sock=self._listener
            )
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._ended.set()
        self.gate.set()
        if self._front is not None:
            self._front.close()
        self.hang_up()
        self._inner.close()
        await self._inner.wait_closed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def route(self) -> Any:
        """As an access server of somebody."""
        return self.login, self.url

    def ops(self) -> List[str]:
        return [request["op"] for request in self.requests]

    async def asked(self, op: str, times: int = 1) -> None:
        """Wait until it has been sent so many of these requests."""
        await eventually(lambda: self.ops().count(op) >= times, f"{op} at {self.login}", 30)

    def is_connected(self) -> bool:
        """Is there a WebSocket connection?"""
        return bool(self._inner.websockets)

    def reset(self) -> None:
        """A TCP reset of every connection."""
        linger = struct.pack("ii", 1, 0)
        for writer in self._open:
            plain = writer.get_extra_info("socket")
            if plain.family == socket.AF_INET:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.hang_up()

    def hang_up(self) -> None:
        """The end of every connection, as if the process had died."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    # -- the front --

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: str
    ) -> None:
        self.connections += 1
        self._open.append(writer)
        self._tasks.append(asyncio.current_task())  # type: ignore[arg-type]
        way, first = self.tcp, b""
        if way.startswith("tls_"):
            first = await reader.read(CHUNK)
            way = way.removeprefix("tls_")
        if way == "resets":
            self.reset()
        elif way == "hangs_up":
            self.hang_up()
        elif way == "garbage":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\nplain text only")
        elif not way:
            behind_reader, behind = await asyncio.open_unix_connection(inner)
            self._open.append(behind)
            behind.write(first)
            await asyncio.gather(
                self._pass(reader, behind), self._pass(behind_reader, writer)
            )

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the other end is gone
        writer.close()

    # -- the inner server --

    async def _upgrade(self, _: str, __: Any) -> Any:
        if self.upgrade == "silent":
            await self._ended.wait()
            return HTTPStatus.GONE, [], b""
        if self.upgrade is None:
            return None
        return HTTPStatus(self.upgrade), [], b""

    async def _converse(self, ws: Any) -> None:
        try:
            async for text in ws:
                request = json.loads(text)
                self.requests.append(request)
                react = self.hello if request["op"] == "ServerHello" else self.request
                await react(self, ws, request)
        except websockets.ConnectionClosed:
            pass
