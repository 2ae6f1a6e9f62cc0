"""Whether a client has read most of what was sent to it, so that there is room for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 60.0
"""A client that reads nothing for so long is cut off."""


class SendRoom:
    """What Twisted tells the producer of an answer, for whoever writes it to wait for."""

    def __init__(self) -> None:
        self._there = asyncio.Event()
        self._there.set()

    @property
    def is_there(self) -> bool:
        return self._there.is_set()

    def take(self) -> None:
        """The client is behind in reading."""
        self._there.clear()

    def give(self) -> None:
        """It has read most of it, or is gone."""
        self._there.set()

    async def wait(self, cut_off: Callable[[], object]) -> None:
        """Until there is room; after PATIENCE_S without any the client is `cut_off`."""
        if self._there.is_set():
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._there.wait()
        except TimeoutError:
            cut_off()
