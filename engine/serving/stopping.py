"""When a worker has to be gone, and the signals that say so."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_S = 5.0
"""A worker that is told to stop may take so long to finish what it is doing; else it hands it back."""
HAND_BACK_S = 2.0
"""How long a request that is handed back may take to publish what it has."""


class Stopping:
    """Whether a worker is to end, and by when. No method takes a lock, as signal handlers must not."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._at is not None

    @property
    def longest_end_s(self) -> float:
        """How long what is in hand may take to end, or to be handed back, from now on."""
        return self._grace_s + 2 * HAND_BACK_S

    def begin(self, *, at_once: bool = False) -> None:
        """What is in hand may go on for the grace period, or with `at_once` not at all.

        Of two calls the earlier deadline holds.
        """
        deadline = time.monotonic() + (0.0 if at_once else self._grace_s)
        self._at = deadline if self._at is None else min(self._at, deadline)

    def comes_before(self, seconds: float) -> bool:
        """Whether what takes so long from now on will not end before the worker has to."""
        return self._at is not None and time.monotonic() + seconds > self._at

    @contextmanager
    def at_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT begin it, a second one at once. Only where Python can listen to them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(_number: int, _frame: object) -> None:
            self.begin(at_once=self.has_begun)

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
