"""A job run to its end, on any backend, and when its first token came."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.backends.base import Backend, Job, Launch, Outcome, Token

_WAIT_S = 0.1


class FirstTokenTimer:
    """Runs from its making until `record` gets a token."""

    def __init__(self) -> None:
        self._begun = time.perf_counter_ns()
        self.ns = 0
        """How long that took; 0 before it."""

    def record(self, fresh: Sequence[Token]) -> None:
        if fresh and not self.ns:
            self.ns = time.perf_counter_ns() - self._begun


def follow(launch: Launch, wait_s: float, on_tokens: Callable[[Sequence[Token]], None]) -> Outcome:
    """Calls `on_tokens` with tokens as they come, and with none after `wait_s` seconds without; how it ended.

    Raises BackendFailure if the device broke down, and whatever `on_tokens` raises.
    """
    while True:
        outcome = launch.outcome  # read first: tokens may still wait in `poll` when it appears
        fresh = launch.poll(wait_s)
        if outcome is not None and not fresh:
            return outcome
        on_tokens(fresh)


def complete(backend: Backend, job: Job) -> list[Token]:
    """All tokens of a job. Raises RequestError if it cannot run, BackendFailure if the device broke down."""
    return drain(backend.launch(job))


def drain(launch: Launch) -> list[Token]:
    """All tokens of a launch, which is closed then. Raises BackendFailure if the device broke down."""
    tokens: list[Token] = []
    try:
        follow(launch, _WAIT_S, tokens.extend)
    finally:
        launch.close()
    return tokens
