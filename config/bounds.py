"""How much one client may have of this process: connections, time to ask, frames a second."""

from __future__ import annotations

import resource
from collections import Counter
from time import monotonic

SPARE_DESCRIPTORS = 128
"""Kept for the database, Redis and logs; connections have the rest."""
SHARE = 4
"""One address has at most this part (one in so many) of all connections."""
PER_ADDRESS = 200
ALTOGETHER = 4000


class Bucket:
    """Holds `burst` at most and refills evenly by `rate` a second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, monotonic()

    def take(self, amount: float) -> bool:
        """Takes `amount`; False, and nothing taken, where there is less."""
        now = monotonic()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < amount:
            return False
        self._level -= amount
        return True


class Census:
    """Counts what is open, by address and in all."""

    def __init__(self, per_address: int, altogether: int) -> None:
        self.per_address, self.altogether = per_address, altogether
        self._open: Counter[str] = Counter()
        self._total = 0

    def enter(self, address: str) -> bool:
        """Counts one more for `address` ("": only in all). False, and not counted, if that were too many."""
        if self._total >= self.altogether or (address and self._open[address] >= self.per_address):
            return False
        self._total += 1
        if address:
            self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        """What `enter` has counted is gone."""
        self._total -= 1
        if address:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    @property
    def total(self) -> int:
        return self._total


def connection_census(descriptors: int | None = None) -> Census:
    """As many connections as the process has descriptors for (RLIMIT_NOFILE), some kept back."""
    if descriptors is None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    altogether = max(16, min(ALTOGETHER, descriptors - SPARE_DESCRIPTORS))
    return Census(min(PER_ADDRESS, altogether // SHARE), altogether)
