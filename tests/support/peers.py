"""False servers: they hang, or speak to frontd as a test wants them to."""

import asyncio
import json
import ssl
from typing import Any, Awaitable, Callable, Dict, List, Optional

import websockets

Handler = Callable[[Dict[str, Any]], Awaitable[Optional[Dict[str, Any]]]]


class SilentServer:
    """Accepts TCP connections and never says a word."""

    def __init__(self) -> None:
        self.connections = 0
        self._writers: List[asyncio.StreamWriter] = []
        self._server: Optional[asyncio.AbstractServer] = None
        self.url = ""

    async def __aenter__(self) -> "SilentServer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"wss://127.0.0.1:{port}/ws"
        return self

    async def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)

    async def __aexit__(self, *_: Any) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()


class FalsePeer:
    """A SHiNE server made of one function: it gets each request and returns the rest of the answer
    (status, payload, error), or None to stay silent."""

    def __init__(self, login: str, certificate: Any, handler: Handler):
        self.login, self.handler = login, handler
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.cert, certificate.key)
        self.requests: List[Dict[str, Any]] = []
        self.connections = 0
        self._server: Any = None
        self.port = 0  # any free one
        self.url = ""

    async def __aenter__(self) -> "FalsePeer":
        self._server = await websockets.serve(
            self._serve, "127.0.0.1", self.port, ssl=self._context, max_size=None, compression=None
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"wss://127.0.0.1:{port}/ws"
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()
        await self._server.wait_closed()

    def ops(self) -> List[str]:
        return [request["op"] for request in self.requests]

    async def _serve(self, ws: Any) -> None:
        self.connections += 1
        try:
            async for text in ws:
                request = json.loads(text)
                self.requests.append(request)
                rest = await self.handler(request)
                if rest is not None:
                    await ws.send(json.dumps(answer(request, **rest)))
        except websockets.ConnectionClosed:
            pass


def answer(request: Dict[str, Any], status: int = 200, **rest: Any) -> Dict[str, Any]:
    head = {"op": request["op"], "requestId": request["requestId"], "payload": {}}
    return {**head, "status": status, "ok": 200 <= status <= 299, **rest}


def hello_answer(login: str, *capabilities: str) -> Dict[str, Any]:
    return {
        "payload": {
            "accepted": True,
            "serverLogin": login,
            "protocolVersion": 1,
            "capabilities": list(capabilities),
        }
    }
