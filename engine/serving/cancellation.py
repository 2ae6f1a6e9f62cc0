"""Cancellations that are lost, and the two ways to bear with that.

Until Python 3.12 `asyncio.wait_for`, which redis-py sends through, swallows a cancellation that arrives as
its work is done. So whoever cancels asks again until the task has ended, and a task that loops asks itself.
"""

from __future__ import annotations

import asyncio
from typing import Any


async def end(task: asyncio.Task[Any]) -> None:
    """Cancels `task` and waits for its end, whatever that is."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)


def obey() -> None:
    """Ends the task that calls this if it was cancelled, which it may not have noticed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
