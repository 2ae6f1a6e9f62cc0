"""A request on the numpy backend: its prompt piece by piece, then token by token, when it is its turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence

import numpy as np

from engine.backends.base import Job, Outcome, Token, TraceSpan
from engine.backends.delivery import Delivery
from engine.errors import BackendFailure
from engine.kv_cache import KeysAndValues
from engine.reference import Cache, Reference
from engine.sampling import choose
from engine.timings import FinishReason, PhaseTime, phases_of

PREFILL_CHUNK = 64
"""Prompt tokens between two looks at the stop flag and at the other requests in flight: enough for the
matrix products, some 0.1 s of work."""


class NumpyLaunch:
    """One request in flight. Implements engine.backends.base.Launch, and does its work in steps."""

    def __init__(
        self,
        reference: Reference,
        job: Job,
        cache: Cache,
        on_end: Callable[[Sequence[int], Cache], None],
    ) -> None:
        """`cache` begins as the prompt does. `on_end` is called with the tokens whose keys and values
        are in it then."""
        self.job = job
        self._reference = reference
        self._cache = cache
        self._on_end = on_end
        self._delivery = Delivery()
        self._stop = threading.Event()
        self._prefilled = self._cached = self._begin = cache.length
        self._history = list(job.tokens)
        self._start_ns = time.perf_counter_ns()
        phases = phases_of(reference.config.experts is not None)
        self._recorder = _Recorder(job, phases, self._start_ns)
        self._steps = self._generate()

    def kept(self) -> KeysAndValues:
        """What is in its cache."""
        return self._cache.content()

    @property
    def prefilled(self) -> int:
        return self._prefilled

    @property
    def outcome(self) -> Outcome | None:
        return self._delivery.outcome

    def poll(self, timeout: float) -> Sequence[Token]:
        return self._delivery.poll(timeout)

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._stop.set()
        self._delivery.wait_for_end()

    @property
    def ended(self) -> bool:
        """True once it has an outcome or has broken down."""
        return self._delivery.ended

    @property
    def reads(self) -> bool:
        """Whether its prompt is not read to its end."""
        return self._cache.length < len(self.job.tokens)

    def read_for(self, other: NumpyLaunch) -> int:
        """How many positions of the other's prompt, not yet begun there, are read here as they would be.

        Of the same prompt of the same owner, in whole pieces: a product with fewer vectors has other bits.
        """
        if not self.job.has_prompt_of(other.job) or self.reads or self._begin != other._begin:
            return 0
        whole = (len(self.job.tokens) - 1 - self._begin) // PREFILL_CHUNK * PREFILL_CHUNK
        return self._begin + whole if whole else 0

    def take_prompt(self, source: NumpyLaunch, length: int) -> None:
        """Goes on from what another one has read of the same prompt. Not after its first step."""
        cache = self._reference.copy_cache(source._cache, length, self._cache.capacity)
        self._cache, self._prefilled, self._cached = cache, length, length

    @property
    def waits(self) -> bool:
        """Whether nothing of its prompt has been read yet."""
        return self.reads and self._prefilled == self._cached

    def step(self) -> None:
        """Does the next piece of it: some of the prompt, or a token."""
        try:
            next(self._steps)
        except StopIteration as end:
            self._leave_cache()
            self._delivery.end(end.value)
        except Exception as error:  # whatever it is, the poller must hear of it
            self._leave_cache()
            failure = BackendFailure(f"the backend numpy failed: {error}")
            failure.__cause__ = error
            self._delivery.fail(failure)

    def _leave_cache(self) -> None:
        self._on_end(self._history[: self._cache.length], self._cache)

    def _generate(self) -> Generator[None, None, Outcome]:
        """Prefill and decode; yields between two pieces of work."""
        job, reference, cache, mark = self.job, self._reference, self._cache, self._recorder.mark
        history = self._history
        limit = min(job.max_tokens, reference.config.context - len(job.tokens))
        logits = np.empty((0, 0), np.float32)
        for start in range(cache.length, len(job.tokens), PREFILL_CHUNK):
            if self._stop.is_set():
                return self._end("cancelled", self._elapsed_ns())
            chunk = job.tokens[start : start + PREFILL_CHUNK]
            is_last = start + len(chunk) == len(job.tokens)
            logits = reference.forward(chunk, cache, scored_from=len(chunk) - is_last, mark=mark)
            self._prefilled = start + len(chunk)
            if not is_last:
                yield
        prefill_ns = self._elapsed_ns()
        for index in range(limit):
            if index:
                yield
                logits = reference.forward(history[-1:], cache, mark=mark)
            sampled = history[len(job.tokens) - job.sampled :]
            token = choose(logits[0], job.sampling, history, len(history), sampled)
            mark("sample", -1)
            self._recorder.token_done()
            if token in job.stop_ids:
                return self._end("stop", prefill_ns)
            history.append(token)
            self._delivery.add((Token(token, self._elapsed_ns()),))
            if self._stop.is_set():
                return self._end("cancelled", prefill_ns)
        return self._end("length", prefill_ns)

    def _end(self, reason: FinishReason, prefill_ns: int) -> Outcome:
        return Outcome(
            finish_reason=reason,
            prefill_tokens=self._prefilled - self._cached,
            cached_tokens=self._cached,
            prefill_ns=prefill_ns,
            phases_us=self._recorder.phases_us() if self.job.profile else {},
            trace=tuple(self._recorder.spans),
        )

    def _elapsed_ns(self) -> int:
        return time.perf_counter_ns() - self._start_ns


class _Recorder:
    """Where the time goes: sums by phase over the decode tokens, and spans of the traced ones.

    The first token comes out of the prefill, so that its phases are spans only, never part of the mean.
    """

    def __init__(self, job: Job, phases: Iterable[str], start_ns: int) -> None:
        self.spans: list[TraceSpan] = []
        self._trace = job.trace
        self._start_ns = start_ns
        self._last_ns = start_ns
        self._token = 0
        self._sums_ns = dict.fromkeys(phases, 0)

    def mark(self, phase: str, layer: int) -> None:
        """The phase that has just ended began where the one before it ended."""
        now = time.perf_counter_ns()
        if self._token > 0:
            self._sums_ns[phase] += now - self._last_ns
        if self._trace is not None and self._trace.first <= self._token < self._trace.last:
            name = phase if layer < 0 else f"{phase} {layer}"
            start_us = (self._last_ns - self._start_ns) / 1e3
            self.spans.append(TraceSpan(name, 0, 0, start_us, (now - self._last_ns) / 1e3))
        self._last_ns = now

    def token_done(self) -> None:
        self._token += 1

    def phases_us(self) -> dict[str, PhaseTime]:
        """Mean microseconds of a decode token; empty if there was none."""
        decoded = self._token - 1
        if decoded < 1:
            return {}
        return {phase: PhaseTime(total / decoded / 1e3) for phase, total in self._sums_ns.items()}
