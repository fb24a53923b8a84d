"""A TCP proxy on loopback that makes a network of it: what one side sends reaches the other after a
while. It delays, it does not slow down: any number of bytes are on their way at once."""

import asyncio
from typing import Any, List, Optional

CHUNK = 1 << 16


class DelayProxy:
    """Passes connections on to `port`, everything `delay` seconds late in each direction.

    async with DelayProxy(server.port, 0.15) as proxy:
        ... wss://127.0.0.1:{proxy.port}/ws ...
    """

    def __init__(self, port: int, delay: float):
        self.target, self.delay = port, delay
        self.connections = 0
        self.port = 0
        self._server: Optional[asyncio.AbstractServer] = None
        self._writers: List[asyncio.StreamWriter] = []
        self._tasks: List["asyncio.Future[Any]"] = []

    @property
    def url(self) -> str:
        return f"wss://127.0.0.1:{self.port}/ws"

    async def __aenter__(self) -> "DelayProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: Any) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, onward = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, onward]
        for source, sink in ((reader, onward), (there, writer)):
            queue: "asyncio.Queue[Any]" = asyncio.Queue()
            self._tasks.append(asyncio.ensure_future(self._take(source, queue)))
            self._tasks.append(asyncio.ensure_future(self._give(queue, sink)))

    async def _take(self, source: asyncio.StreamReader, queue: "asyncio.Queue[Any]") -> None:
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            try:
                data = await source.read(CHUNK)
            except ConnectionError:
                data = b""
            queue.put_nowait((loop.time() + self.delay, data))

    async def _give(self, queue: "asyncio.Queue[Any]", sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data or sink.transport.is_closing():
                sink.close()
                return
            sink.write(data)
