"""One repeat of a benchmark point: a launch of one request, or of several side by side, and its speeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from engine.backends.base import Backend, Job, Outcome, Token
from engine.backends.running import FirstTokenTimer, follow
from engine.timings import decode_speed

POLL_S = 0.05
"""Longest wait in one poll: how soon a stop is obeyed when no token comes."""
_PAUSE_S = 0.0002
"""Between two looks at several streams, some of which have no token yet: so late may a first one be seen."""


@dataclass(frozen=True)
class Run:
    """One request as it was seen from here."""

    tokens: tuple[Token, ...]
    ttft_ns: int
    outcome: Outcome
    begun_ns: int = 0
    """When the launch's clock stood at nought, by the host's."""

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def tok_s(self) -> float:
        return decode_speed(len(self.tokens) - 1, self.tokens[-1].t_ns - self.tokens[0].t_ns)

    @property
    def gaps_us(self) -> tuple[float, ...]:
        return tuple((b.t_ns - a.t_ns) / 1e3 for a, b in zip(self.tokens, self.tokens[1:], strict=False))

    @property
    def prefill_tok_s(self) -> float:
        return self.outcome.prefill_tokens * 1e9 / max(1, self.outcome.prefill_ns)

    def between(self, first_ns: int, last_ns: int) -> Run:
        """With the tokens alone that were ready at or between two times of the host's clock."""
        kept = (token for token in self.tokens if first_ns <= self.begun_ns + token.t_ns <= last_ns)
        return replace(self, tokens=tuple(kept))


@dataclass(frozen=True)
class Repeat:
    """The streams of one repeat: those that were decoded side by side, or the only one."""

    runs: tuple[Run, ...]

    @cached_property
    def timed(self) -> tuple[Run, ...]:
        """Each stream with its tokens while all of them were decoded.

        Of several that is from the last one's first token to the first one's last.
        """
        if len(self.runs) == 1:
            return self.runs
        first_ns = max(run.begun_ns + run.tokens[0].t_ns for run in self.runs)
        last_ns = min(run.begun_ns + run.tokens[-1].t_ns for run in self.runs)
        return tuple(run.between(first_ns, last_ns) for run in self.runs)

    @property
    def tok_s(self) -> float:
        """Of one stream: the mean of all."""
        return sum(self.stream_tok_s) / len(self.runs)

    @property
    def stream_tok_s(self) -> tuple[float, ...]:
        return tuple(run.tok_s for run in self.timed)


def run_together(
    backend: Backend, jobs: Sequence[Job], enough: int, on_tokens: Callable[[Sequence[int]], None]
) -> Repeat:
    """Launches all jobs at once; the repeat when each has `enough` tokens.

    Those that have room for more are stopped then. `on_tokens` is told how many each has, after each poll;
    what it raises ends the launches. Raises BackendFailure if the device broke down.
    """
    streams: list[_Stream] = []
    try:
        for job in jobs:
            streams.append(_Stream(backend, job))
        while any(stream.is_wanted(enough) for stream in streams):
            _look(streams, enough)
            on_tokens([len(stream.tokens) for stream in streams])
        for stream in streams:
            if len(stream.tokens) < stream.job.max_tokens:
                stream.launch.stop()
        return Repeat(tuple(stream.finish() for stream in streams))
    finally:
        for stream in streams:
            stream.launch.close()


def _look(streams: Sequence[_Stream], enough: int) -> None:
    """Takes the new tokens of all, and waits for those of one once all have begun.

    Before that a wait would hide when another's first token came. Later tokens say when they came, and a look
    takes a core away from streams that decode on it.
    """
    if all(stream.has_begun for stream in streams) or len(streams) == 1:
        first = next(stream for stream in streams if stream.is_wanted(enough))
        first.poll(POLL_S)
        for stream in streams:
            if stream is not first:
                stream.poll(0.0)
    elif not sum(stream.poll(0.0) for stream in streams):
        time.sleep(_PAUSE_S)


class _Stream:
    """A launch, and what has come of it."""

    def __init__(self, backend: Backend, job: Job) -> None:
        self.job = job
        self.tokens: list[Token] = []
        self.ended = False
        self._first = FirstTokenTimer()
        self.launch = backend.launch(job)
        self._begun_ns = time.perf_counter_ns()

    @property
    def has_begun(self) -> bool:
        return self.ended or bool(self.tokens)

    def is_wanted(self, enough: int) -> bool:
        """Whether it is to give more, of `enough` tokens."""
        return not self.ended and len(self.tokens) < enough

    def poll(self, wait_s: float) -> int:
        """How many tokens came; waits so long for one."""
        if self.ended:
            return 0
        outcome = self.launch.outcome  # read first: tokens may still wait in `poll` when it appears
        fresh = self.launch.poll(wait_s)
        self._take(fresh)
        self.ended = outcome is not None and not fresh
        return len(fresh)

    def finish(self) -> Run:
        outcome = follow(self.launch, POLL_S, self._take)
        return Run(tuple(self.tokens), self._first.ns, outcome, self._begun_ns)

    def _take(self, fresh: Sequence[Token]) -> None:
        self._first.record(fresh)
        self.tokens += fresh
