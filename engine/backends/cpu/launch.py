"""One request in flight on the CPU kernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Job, Outcome, Token, TraceSpan
from engine.backends.cpu import library
from engine.backends.cpu.contract import Finish, NativeJob, Span
from engine.backends.cpu.kept_caches import NOTHING_KEPT, Lease
from engine.backends.cpu.library import check
from engine.sampling import OPTIONS, SamplingParams
from engine.timings import EVERY_PHASE, PHASES, FinishReason, PhaseTime

POLLED = 512
"""Tokens fetched from the ring at a time."""


class _Progress(NamedTuple):
    code: int
    prefill_ns: int
    prefilled: int
    """Prompt tokens that have keys and values, kept ones included."""
    filled: int
    """Positions of the sequence that have them."""
    cached: int
    """Prompt tokens whose keys and values others have computed."""


class CpuLaunch:
    """One request in flight. Implements engine.backends.base.Launch."""

    def __init__(
        self,
        native: ctypes.CDLL,
        kernel: ctypes.c_void_p,
        job: Job,
        row: int = 0,
        *,
        lease: Lease = NOTHING_KEPT,
        on_end: Callable[[Sequence[int]], None] = lambda _tokens: None,
        all_logits: NDArray[np.float32] | None = None,
        phases: Collection[str] = PHASES,
    ) -> None:
        """`phases` are those of the model. `all_logits` takes those of as many last tokens as it has rows.

        `on_end` is called once, with the tokens whose keys and values are in the lease's cache then.
        """
        self._library = native
        self._kernel = kernel
        self._job = job
        self._row = row
        self._lock = threading.RLock()
        """Held by whoever polls."""
        self._owning = threading.Lock()
        """Held while the row is used to stop this launch, or is given up."""
        self._owns_row = True
        self._phases = phases
        self._on_end = on_end
        self._outcome: Outcome | None = None
        self._ended: _Progress | None = None
        self._generated: list[int] = []
        self._waiting: list[Token] = []
        """Taken from the kernel when it ended, not yet polled."""
        self._ids = (ctypes.c_int32 * POLLED)()
        self._times = (ctypes.c_int64 * POLLED)()
        trace = job.trace or (0, 0)
        described = NativeJob(
            tokens=(ctypes.c_int32 * len(job.tokens))(*job.tokens),
            count=len(job.tokens),
            max_tokens=min(job.max_tokens, 2**31 - 1),
            row=row,
            cache=lease.cache,
            cached=lease.cached,
            owner=_owner(job.cache_salt),
            stop_ids=(ctypes.c_int32 * len(job.stop_ids))(*sorted(job.stop_ids)),
            stop_count=len(job.stop_ids),
            sampled=job.sampled,
            **_sampling_fields(job.sampling),
            profile=job.profile,
            trace_first=trace[0],
            trace_last=trace[1],
            all_logits=None
            if all_logits is None
            else all_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            scored_from=0 if all_logits is None else len(job.tokens) - len(all_logits),
        )
        check(native.ml_launch(kernel, ctypes.byref(described)), "starting the request")

    @property
    def is_measured(self) -> bool:
        return self._job.is_measured

    @property
    def prefilled(self) -> int:
        return self._finish().prefilled

    @property
    def outcome(self) -> Outcome | None:
        with self._lock:
            if self._outcome is None:
                end = self._finish()
                if end.code != Finish.RUNNING:
                    self._end(end)
        return self._outcome

    def _end(self, end: _Progress) -> None:
        while fresh := self._take(0):
            self._waiting += fresh
        self._outcome = Outcome(
            finish_reason=cast("FinishReason", Finish(end.code).name.lower()),
            prefill_tokens=end.prefilled - end.cached,
            cached_tokens=end.cached,
            prefill_ns=end.prefill_ns,
            phases_us=self._phases_us() if self._job.profile else {},
            trace=self._spans() if self._job.trace else (),
        )
        with self._owning:
            self._owns_row = False
        self._on_end((*self._job.tokens, *self._generated)[: end.filled])

    def settle(self) -> None:
        """Gives up the row if the launch has ended. Waits for nobody: whoever polls it now will see."""
        if self._lock.acquire(blocking=False):
            try:
                _ = self.outcome
            finally:
                self._lock.release()

    def poll(self, timeout: float) -> Sequence[Token]:
        with self._lock:
            if self._outcome is not None:
                waiting, self._waiting = self._waiting, []
                return waiting
            return self._take(timeout)

    def _take(self, timeout: float) -> list[Token]:
        count = self._library.ml_poll(
            self._kernel, self._row, self._ids, self._times, POLLED, max(0, round(timeout * 1e9))
        )
        fresh = [Token(self._ids[i], self._times[i]) for i in range(count)]
        self._generated += [token.id for token in fresh]
        return fresh

    def stop(self) -> None:
        with self._owning:
            if self._owns_row:
                self._library.ml_stop(self._kernel, self._row)

    def close(self) -> None:
        self.stop()
        while self.outcome is None:
            self.poll(1.0)

    def _finish(self) -> _Progress:
        """How far it is; of one that has ended, what it came to: its row may be another's by now."""
        if self._ended is not None:
            return self._ended
        outputs = (ctypes.c_int64(), ctypes.c_int32(), ctypes.c_int32(), ctypes.c_int32())
        code = self._library.ml_finish(self._kernel, self._row, *map(ctypes.byref, outputs))
        progress = _Progress(code, *(output.value for output in outputs))
        if code != Finish.RUNNING:
            self._ended = progress
        return progress

    def _phases_us(self) -> dict[str, PhaseTime]:
        kinds = len(library.WAITS)
        sums = (ctypes.c_double * (len(EVERY_PHASE) * kinds))()
        if self._library.ml_profile(self._kernel, sums, len(EVERY_PHASE)) < 1:
            return {}
        return {
            phase: PhaseTime(*(sums[i * kinds + kind] / 1e3 for kind in range(kinds)))
            for i, phase in enumerate(EVERY_PHASE)
            if phase in self._phases
        }

    def _spans(self) -> tuple[TraceSpan, ...]:
        count = self._library.ml_spans(self._kernel, None, 0)
        spans = (Span * count)()
        self._library.ml_spans(self._kernel, spans, count)
        return tuple(_trace_span(span) for span in spans)


def _trace_span(span: Span) -> TraceSpan:
    phase = EVERY_PHASE[span.phase]
    return TraceSpan(
        name=phase if span.layer < 0 else f"{phase} {span.layer}",
        device=span.device,
        track=span.thread,
        start_us=span.start_ns / 1e3,
        duration_us=(span.end_ns - span.start_ns) / 1e3,
        kind=cast("Any", library.WAITS[span.kind]),
    )


def _owner(salt: str) -> int:
    """A number for the owner of a sequence; 0 for nobody's."""
    return int.from_bytes(blake2b(salt.encode(), digest_size=8).digest()) or 1 if salt else 0


def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    ids, biases = zip(*sampling.logit_bias, strict=True) if sampling.logit_bias else ((), ())
    return {
        **{option.name: getattr(sampling, option.name) for option in OPTIONS},
        "bias_count": len(ids),
        "bias_ids": (ctypes.c_int32 * len(ids))(*ids),
        "biases": (ctypes.c_float * len(ids))(*biases),
    }
