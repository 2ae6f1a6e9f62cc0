"""A circuit breaker: after a failure, callers leave a dead Redis alone for a while and fail at once."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Opens for `seconds` when it is tripped, then closes by itself. One a process; threads may share it."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._until = float("-inf")

    def trip(self) -> None:
        """Opens the circuit, or keeps it open for another `seconds`."""
        self._until = self._clock() + self.seconds

    @property
    def closed(self) -> bool:
        """Whether a call may be made."""
        return self._clock() >= self._until


redis_circuit = CircuitBreaker(10.0)
"""Shared by whatever talks to Redis: one failure spares the others the wait (cancelling, Celery, hints)."""
