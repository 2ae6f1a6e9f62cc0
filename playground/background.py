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
