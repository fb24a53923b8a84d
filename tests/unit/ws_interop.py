"""The other end of test_ws_interop.c: an independent WebSocket implementation, as client and as server."""

import asyncio
import ssl
import sys

import websockets

SIZES = [0, 1, 125, 126, 127, 65535, 65536, 65537, 1 << 20, 4 << 20]


def text(size):
    return ("Zeichen ✓ 🙂 " * (size // 13 + 1)).encode()[:size].decode(errors="ignore")


async def client(url, ca_file):
    context = ssl.create_default_context(cafile=ca_file)
    # Offers permessage-deflate, which must be declined, and sends an Origin, which must not matter.
    async with websockets.connect(
        url, ssl=context, max_size=None, origin="https://elsewhere.example"
    ) as ws:
        assert not ws.extensions
        for size in SIZES:
            await ws.send(text(size))
            assert await ws.recv() == text(size), size
        pieces = ["Frag", "", "men", "tö", "s"]
        await ws.send(pieces)
        assert await ws.recv() == "".join(pieces)
        await (await ws.ping(b"payload"))
        for n in range(500):
            await ws.send(str(n))
        for n in range(500):
            assert await ws.recv() == str(n)
        await ws.close(4001, "пока")
        assert (ws.close_code, ws.close_reason) == (4001, ""), (ws.close_code, ws.close_reason)
    async with websockets.connect(url, ssl=context) as ws:
        await ws.send(b"binary")
        try:
            await ws.recv()
        except websockets.ConnectionClosedError as e:
            assert e.rcvd.code == 1003, e
        else:
            raise AssertionError("binary was accepted")
    try:
        await websockets.connect(url + "/other", ssl=context)
    except websockets.InvalidStatusCode as e:
        assert e.status_code == 404
    else:
        raise AssertionError("any path will do")
    print("fine", flush=True)


async def serve(cert, key):
    async def handler(ws):
        async for message in ws:
            if message == "close me":
                await ws.close(1013, "zu langsam, вот")
                return
            if message == "ping me":
                await (await ws.ping())
            await ws.send(message)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with websockets.serve(handler, "127.0.0.1", 0, ssl=context, max_size=None) as server:
        print("port", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run({"client": client, "serve": serve}[sys.argv[1]](*sys.argv[2:]))
