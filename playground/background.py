"""Tasks that outlive whoever started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Runs `work` to its end; the event loop alone would let go of a task that nobody holds."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def end(task: asyncio.Task[Any]) -> None:
    """Cancels `task` and waits for its end, whatever that is.

    Asks more than once: until Python 3.12 `asyncio.wait_for`, which redis-py sends through, swallows a
    cancellation that arrives as its work is done.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
