"""How much one client may have of this process: connections, time to ask, frames a second."""

from __future__ import annotations

import resource
from collections import Counter
from time import monotonic

POLICY_VIOLATION = 1008
"""Close code: this websocket took more than its part."""
SPARE_DESCRIPTORS = 128
"""Kept for the database, Redis and logs; connections have the rest."""
SHARE = 4
"""One address has at most this part (one in so many) of all connections."""
PER_ADDRESS = 200
ALTOGETHER = 4000
REMEMBERED = 10_000
"""With more addresses than this in memory, those that owe nothing are forgotten."""


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


class Pace:
    """Lets each address begin `rate` a second, and `burst` at once; what is more waits for its turn."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst_s = rate, burst / rate
        self._paid_until: dict[str, float] = {}

    def wait_s(self, address: str, amount: float, patience_s: float) -> float:
        """How long the next `amount` has to wait. What would wait longer than `patience_s` is not counted."""
        if not address or not amount:
            return 0.0
        now = monotonic()
        until = max(now, self._paid_until.get(address, now)) + amount / self._rate
        wait_s = max(0.0, until - now - self._burst_s)
        if wait_s <= patience_s:
            self._paid_until[address] = until
            self._forget(now)
        return wait_s

    def _forget(self, now: float) -> None:
        if len(self._paid_until) > REMEMBERED:
            self._paid_until = {who: until for who, until in self._paid_until.items() if until > now}


class Exclusions:
    """Addresses that are shut out for a while: `first_s`, then twice as long each time, `longest_s` at most.

    One that behaves for as long as it was last shut out begins anew.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._found: dict[str, tuple[float, float]] = {}
        """Until when, and for how long."""

    def add(self, address: str) -> None:
        """Shuts `address` out from now on; nothing happens to one that already is, nor to ""."""
        now = monotonic()
        until, length_s = self._found.get(address, (0.0, 0.0))
        if not address or until > now:
            return
        again = now < until + length_s
        length_s = min(2 * length_s, self._longest_s) if again else self._first_s
        self._found[address] = now + length_s, length_s
        if len(self._found) > REMEMBERED:
            self._found = {who: what for who, what in self._found.items() if sum(what) > now}

    def left_s(self, address: str) -> float:
        """How long `address` is still shut out; 0 for one that is not."""
        until, _ = self._found.get(address, (0.0, 0.0))
        return max(0.0, until - monotonic())


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
