"""Tests wait for conditions, never for fixed times."""

import asyncio
import time
from typing import Any, Callable


async def eventually(probe: Callable[[], Any], what: str, timeout: float = 15.0) -> Any:
    """The first true result of `probe` (a plain or an async function), asked again and again. The
    pauses are short and grow, so that quick conditions cost nothing and slow ones little."""
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        result = probe()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:g} s")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
