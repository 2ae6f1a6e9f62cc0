"""Waiting for what threads and processes do: as long as a busy machine may need, no longer than it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 60.0
"""A busy machine is not slower than this; what is broken never comes."""


def wait_until(condition: Callable[[], object], timeout_s: float = PATIENCE_S, every_s: float = 0.02) -> None:
    """Looks until `condition` holds. Fails after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {timeout_s:g} s"
        time.sleep(every_s)


async def until(condition: Callable[[], Awaitable[object]], timeout_s: float = PATIENCE_S) -> None:
    """As `wait_until`. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)


def quickest(attempt: Callable[[int], float], enough_s: float, tries: int = 5) -> float:
    """The least of the durations that `attempt` returns, in seconds; it is told how often it ran before.

    Ends with the first below `enough_s`: where a duration is the point, a busy machine gets some more tries.
    """
    least = attempt(0)
    for number in range(1, tries):
        if least < enough_s:
            break
        least = min(least, attempt(number))
    return least


async def quickest_async(
    attempt: Callable[[int], Awaitable[float]], enough_s: float, tries: int = 5
) -> float:
    """As `quickest`."""
    least = await attempt(0)
    for number in range(1, tries):
        if least < enough_s:
            break
        least = min(least, await attempt(number))
    return least
