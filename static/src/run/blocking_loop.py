"""asyncio where there are no sockets, no threads and no other task of the browser: to wait is to sleep.

Pyodide's own loop is the browser's, which a program that has to end within its worker's one message cannot
go back to.
"""

from __future__ import annotations

import asyncio
import time


class BlockingLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of their times and sleeps in between."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Clock()

    def _process_events(self, _events: list[object]) -> None:
        """There are none: nothing is watched."""

    def _write_to_self(self) -> None:
        """There is no other thread that could have to wake this one."""


class _Clock:
    """What a loop asks for events, where none can come."""

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise RuntimeError("every task waits for another one: none can go on")
        time.sleep(timeout)
        return []


def install() -> None:
    """Makes `asyncio.run` and `asyncio.new_event_loop` use this loop."""
    asyncio.events._set_running_loop(None)  # Pyodide's counts as running all the time
    asyncio.run = asyncio.runners.run
    asyncio.new_event_loop = asyncio.events.new_event_loop = BlockingLoop
