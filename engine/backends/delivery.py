"""From the thread that runs a launch to the one that polls it: tokens as they come, and how it ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from engine.backends.base import Outcome, Token
from engine.errors import BackendFailure


class Delivery:
    """The part of engine.backends.base.Launch that a launch has which another thread runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._fresh: list[Token] = []
        self._outcome: Outcome | None = None
        self._failure: BackendFailure | None = None

    @property
    def outcome(self) -> Outcome | None:
        return self._outcome

    @property
    def ended(self) -> bool:
        """True once it has an outcome or has broken down."""
        return self._outcome is not None or self._failure is not None

    def add(self, tokens: Sequence[Token]) -> None:
        with self._changed:
            self._fresh += tokens
            self._changed.notify_all()

    def end(self, outcome: Outcome) -> None:
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()

    def fail(self, failure: BackendFailure) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def poll(self, timeout: float) -> Sequence[Token]:
        """Tokens since the last call, as Launch.poll. Raises what it failed with once all are taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._fresh or self.ended, timeout)
            tokens, self._fresh = self._fresh, []
        if not tokens and self._failure is not None:
            raise self._failure
        return tokens

    def wait_for_end(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.ended)
