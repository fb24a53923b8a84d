"""Running syncd, and what the tests of replication have in common."""

import asyncio
import contextlib
import os
import subprocess
from typing import Any, AsyncIterator, Dict, Iterable, Tuple

import lab
from example_client import b64, shine_dm

from .server import SANITIZERS


def _argv(server: Any, *args: str) -> Any:
    return [str(server.bin_dir / "syncd"), "-c", str(server.config), *args]


def judge(log: str) -> None:
    assert "Sanitizer" not in log and "event=bug" not in log and "stop_cut" not in log, log[-3000:]


async def sync_once(server: Any, *args: str) -> Tuple[int, str, str]:
    """One cycle at `server`: exit status, what it printed, its log."""
    done = await asyncio.to_thread(
        subprocess.run, _argv(server, "--once", *args), capture_output=True, text=True, timeout=120,
        check=False, env={**lab.process.environment(), **SANITIZERS})  # fmt: skip
    judge(done.stderr)
    return done.returncode, done.stdout, done.stderr


@contextlib.asynccontextmanager
async def syncd(server: Any, *args: str) -> AsyncIterator[lab.Process]:
    """A syncd that stays, until the end of the block or until the test has killed it."""
    log = server.log.with_name(f"syncd-{os.urandom(3).hex()}.log")
    process = lab.Process(_argv(server, *args), log, tied=server.tied, env=SANITIZERS)
    try:
        yield process
        if process.returncode is None:
            assert await asyncio.to_thread(process.stop, 25) and process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
    judge(log.read_text())


def item(owner: Any, blobs: Iterable[bytes], stored_at_ms: int) -> Dict[str, Any]:
    """An item of a page, as a second server might name it."""
    blobs = list(blobs)
    try:
        key = shine_dm.parse(blobs[-1]).message_key()
    except shine_dm.DmError:
        key = f"item {stored_at_ms}"
    return {
        "syncId": f"{key}:{stored_at_ms}",
        "primaryMessageKey": key,
        "storedAtMs": stored_at_ms,
        "blobsB64": [b64(blob) for blob in blobs],
    }
