"""The numpy backend: the reference forward pass behind the same protocol as the kernels.

A thread takes the place of the device: it runs the launch while the caller polls. NumPy lets go of the
interpreter lock inside its matrix products, so that the caller's thread stays responsive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from engine.backends.base import (
    DeviceInfo,
    Job,
    Loaded,
    Outcome,
    Token,
    Topology,
    TraceSpan,
    check_job,
    check_sequence,
)
from engine.backends.prefix_cache import OPTION, KeptSequence, PrefixCache, PrefixCacheUse, budget_of
from engine.errors import BackendFailure, BackendUnavailable, RequestError
from engine.measuring.bandwidth import datasheet_gbs, measure_read_gbs, usable_cores
from engine.processor import processor_name
from engine.progress import OnProgress, Progress, ignore_progress
from engine.reference import Cache, Reference
from engine.sampling import choose
from engine.timings import FinishReason, PhaseTime, phases_of

PREFILL_CHUNK = 64
"""Prompt tokens between two looks at the stop flag: enough for the matrix products, some 0.1 s of work."""

DEFAULT_CACHE_MIB = 1024
"""For the keys and values of recent sequences, unless an option says otherwise."""
_LEAST_CAPACITY = 256


def available() -> tuple[bool, str]:
    return True, f"NumPy {np.__version__} runs the reference in FP32"


def describe() -> str:
    return available()[1]


def open(
    model: Loaded, *, devices: int, options: Mapping[str, Any], progress: OnProgress = ignore_progress
) -> NumpyBackend:
    """Options: threads, prefix_cache_mib. Raises BackendUnavailable for another, or a second device."""
    progress(Progress(1, 1, "model", "taking the weights as they are"))
    if devices != 1:
        raise BackendUnavailable(
            f"devices is {devices}; the backend numpy has 1, virtual devices come with the backend cpu"
        )
    for name in options:
        if name not in ("threads", OPTION):
            raise BackendUnavailable(f"the backend numpy has no option {name!r}; it takes threads, {OPTION}")
    threads = options.get("threads", max(1, usable_cores() - 1))
    if not isinstance(threads, int) or threads < 1:
        raise BackendUnavailable(f"threads is {threads!r}; it must be a whole number, 1 or more")
    return NumpyBackend(model, threads, budget_of(options, DEFAULT_CACHE_MIB))


class NumpyBackend:
    """Implements engine.backends.base.Backend.

    By default one core stays free for whoever passes the tokens on. The threads of a matrix product wait
    for each other by spinning, so that without an idle core each product takes a time slice of the system:
    on 2 busy cores SmolLM2 fell to 7 tok/s with 2 threads and to 32 with 1 (docs/decisions/numpy-threads.md).

    The number of threads holds for every matrix product of the process until `close`.
    """

    name = "numpy"

    def __init__(self, model: Loaded, threads: int = 1, cache_bytes: int = DEFAULT_CACHE_MIB << 20) -> None:
        self.config = model.config
        processor = processor_name()
        self.topology = Topology(
            devices=(DeviceInfo(processor, datasheet_gbs(processor)),), lanes=model.config.lanes.count
        )
        self.facts: dict[str, Any] = {"threads": threads}
        self._limit = ThreadpoolController().limit(limits=threads, user_api="blas")
        self._reference = Reference(model.weights)
        self._kept: PrefixCache[Cache] = PrefixCache(cache_bytes)
        self._current: NumpyLaunch | None = None
        self._lock = threading.Lock()

    def storage(self, name: str) -> None:  # noqa: ARG002 (all are alike)
        return None

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        return self._kept.use

    def kept_sequences(self) -> list[KeptSequence]:
        return self._kept.sequences

    def state(self) -> dict[str, Any]:
        return {}

    def launch(self, job: Job) -> NumpyLaunch:
        check_job(self.config, job)
        with self._lock:
            if self._current is not None and not self._current.ended:
                raise RequestError("the backend numpy runs one launch at a time; close the other one first")
            self._current = NumpyLaunch(self._reference, job, self._kept)
            return self._current

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each of `tokens`: [len(tokens), vocab]."""
        check_sequence(self.config, tokens)
        cache = self._reference.new_cache(len(tokens))
        chunks = [
            self._reference.forward(tokens[start : start + PREFILL_CHUNK], cache)
            for start in range(0, len(tokens), PREFILL_CHUNK)
        ]
        return np.concatenate(chunks)

    def measure_bandwidth(self) -> tuple[float, ...]:
        """GB/s read from memory, with one thread a core."""
        return (measure_read_gbs(),)

    def close(self) -> None:
        with self._lock:
            if self._current is not None:
                self._current.close()
        self._limit.restore_original_limits()


class NumpyLaunch:
    """One request in flight on its own thread. Implements engine.backends.base.Launch."""

    def __init__(self, reference: Reference, job: Job, kept: PrefixCache[Cache]) -> None:
        self._reference = reference
        self._job = job
        self._kept = kept
        self._changed = threading.Condition()
        self._fresh: list[Token] = []
        self._stop = threading.Event()
        self._outcome: Outcome | None = None
        self._failure: Exception | None = None
        self._prefilled = 0
        self._cached = 0
        self._start_ns = time.perf_counter_ns()
        phases = phases_of(reference.config.experts is not None)
        self._recorder = _Recorder(job, phases, self._start_ns)
        self._thread = threading.Thread(target=self._run, name="numpy-launch", daemon=True)
        self._thread.start()

    @property
    def prefilled(self) -> int:
        return self._prefilled

    @property
    def outcome(self) -> Outcome | None:
        return self._outcome

    def poll(self, timeout: float) -> Sequence[Token]:
        with self._changed:
            self._changed.wait_for(lambda: self._fresh or self.ended, timeout)
            tokens, self._fresh = self._fresh, []
        if not tokens and self._failure is not None:
            raise BackendFailure(f"the backend numpy failed: {self._failure}") from self._failure
        return tokens

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def ended(self) -> bool:
        """True once it has an outcome or has broken down."""
        return self._outcome is not None or self._failure is not None

    def _run(self) -> None:
        outcome, failure = None, None
        try:
            outcome = self._generate()
        except Exception as error:  # whatever it is, the poller must hear of it
            failure = error
        with self._changed:
            self._outcome, self._failure = outcome, failure
            self._changed.notify_all()

    def _generate(self) -> Outcome:
        """Goes on from a kept sequence if there is one, and keeps what it has come to."""
        job = self._job
        limit = min(job.max_tokens, self._reference.config.context - len(job.tokens))
        cache = self._begin_cache(len(job.tokens) + limit)
        self._prefilled = self._cached = cache.length
        history = list(job.tokens)
        try:
            return self._run_model(cache, history, limit)
        finally:
            self._kept.keep(job.cache_salt, history[: cache.length], cache, cache.filled_bytes)

    def _begin_cache(self, needed: int) -> Cache:
        """A cache for `needed` positions with as much of the prompt in it as is kept.

        Its capacity is a power of two, so that a conversation that grows is seldom copied.
        """
        reference, job = self._reference, self._job
        capacity = max(_LEAST_CAPACITY, 1 << (needed - 1).bit_length())
        capacity = max(needed, min(capacity, reference.config.context))
        match = self._kept.reuse(job.cache_salt, job.tokens)
        if match is None:
            return reference.new_cache(capacity)
        if match.copies or match.value.capacity < needed:
            return reference.copy_cache(match.value, match.length, capacity)
        match.value.length = match.length
        return match.value

    def _run_model(self, cache: Cache, history: list[int], limit: int) -> Outcome:
        """Prefill and decode; `history` begins as the prompt and gets the new tokens."""
        job, reference, mark = self._job, self._reference, self._recorder.mark
        logits = np.empty((0, 0), np.float32)
        for start in range(cache.length, len(job.tokens), PREFILL_CHUNK):
            if self._stop.is_set():
                return self._end("cancelled", self._elapsed_ns())
            chunk = job.tokens[start : start + PREFILL_CHUNK]
            is_last = start + len(chunk) == len(job.tokens)
            logits = reference.forward(chunk, cache, logits="last" if is_last else "none", mark=mark)
            self._prefilled = start + len(chunk)
        prefill_ns = self._elapsed_ns()
        for index in range(limit):
            if index:
                logits = reference.forward(history[-1:], cache, logits="last", mark=mark)
            sampled = history[len(job.tokens) - job.sampled :]
            token = choose(logits[0], job.sampling, history, len(history), sampled)
            mark("sample", -1)
            self._recorder.token_done()
            if token in job.stop_ids:
                return self._end("stop", prefill_ns)
            history.append(token)
            self._publish(token)
            if self._stop.is_set():
                return self._end("cancelled", prefill_ns)
        return self._end("length", prefill_ns)

    def _publish(self, token: int) -> None:
        with self._changed:
            self._fresh.append(Token(token, self._elapsed_ns()))
            self._changed.notify_all()

    def _end(self, reason: FinishReason, prefill_ns: int) -> Outcome:
        return Outcome(
            finish_reason=reason,
            prefill_tokens=self._prefilled - self._cached,
            cached_tokens=self._cached,
            prefill_ns=prefill_ns,
            phases_us=self._recorder.phases_us() if self._job.profile else {},
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
