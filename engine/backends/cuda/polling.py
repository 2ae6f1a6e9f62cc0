"""How the host follows what runs on GPUs: it looks now and then, for tokens and for the end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from engine.backends.base import Outcome, Token
from engine.errors import BackendFailure

_LOOK_SECONDS = 50e-6
"""Between two looks: a sixth of the fastest token. The system makes it twice as long."""
_EAGER_S = 0.002
"""For so long there is no pause between looks: the first token of a short prompt comes within it, and the end
after the last one."""


class PolledLaunch(ABC):
    """What a launch on one GPU and one on several have in common of engine.backends.base.Launch."""

    def __init__(self, max_new: int) -> None:
        """It ends after `max_new` tokens, if not before."""
        self._outcome: Outcome | None = None
        self._left = max_new
        self._eager_until = time.perf_counter() + _EAGER_S

    @property
    @abstractmethod
    def breakdown(self) -> BackendFailure | None:
        """What broke down, as what it means for the process."""

    @abstractmethod
    def take(self) -> Sequence[Token]:
        """Tokens since the last call, without waiting."""

    @abstractmethod
    def _look(self) -> None:
        """Notices the end: from then on there is an outcome or a breakdown."""

    @property
    def outcome(self) -> Outcome | None:
        self._look()
        return self._outcome

    @property
    def ended(self) -> bool:
        """True once it has an outcome or has broken down."""
        return self._outcome is not None or self.breakdown is not None

    def poll(self, timeout: float) -> Sequence[Token]:
        deadline = time.perf_counter() + timeout
        while True:
            if tokens := self.take():
                self._left -= len(tokens)
                if not self._left:
                    self._eager_until = time.perf_counter() + _EAGER_S
                return tokens
            self._look()
            if self.ended:
                tokens = self.take()
                if not tokens and self.breakdown is not None:
                    raise self.breakdown
                return tokens
            now = time.perf_counter()
            if now >= deadline:
                return []
            time.sleep(_LOOK_SECONDS if now >= self._eager_until else 0)  # other threads have a turn

    def wait(self) -> Outcome:
        """Blocks until the end. Raises BackendFailure if a GPU broke down."""
        self._wait_for_end()
        if self.breakdown is not None:
            raise self.breakdown
        assert self._outcome is not None  # noqa: S101  ended without a breakdown
        return self._outcome

    def _wait_for_end(self) -> None:
        while not self.ended:
            self._look()
            time.sleep(_LOOK_SECONDS)
