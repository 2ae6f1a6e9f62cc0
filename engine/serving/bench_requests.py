"""A benchmark point as a request: on which engine it runs, alone, and what it sends back."""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from engine.backends.base import TraceRange, TraceSpan
from engine.kv_cache import OPTION as CACHE
from engine.measuring.bench import BenchStopped, run_point
from engine.measuring.point import Point, require_rows
from engine.measuring.trace import chrome_trace, pack_trace
from engine.serving.engines import Engine, EngineSpec
from engine.serving.heartbeat import HeartbeatThread
from engine.serving.lending import Lending
from engine.serving.messages import MAX_TRACE_BYTES, BenchRequest, Done, Frame, Measured, Started
from engine.serving.model_host import ModelHost
from engine.serving.publisher import Output
from engine.serving.status import Status
from engine.serving.stopping import Stopping
from engine.timings import NEVER_BEGAN

log = logging.getLogger(__name__)

TRACED = TraceRange(1, 2)
"""Which tokens a benchmark point records where a trace is asked for: the second one, a whole decode step."""


class BenchRequests:
    """Measures points for the worker called `worker`, whose own models are `models`."""

    def __init__(
        self,
        worker: str,
        models: ModelHost,
        lending: Lending,
        heartbeat: HeartbeatThread,
        status: Status,
        stopping: Stopping,
    ) -> None:
        self._worker = worker
        self._models = models
        self._lending = lending
        self._heartbeat = heartbeat
        self._status = status
        self._stopping = stopping

    def measure(self, request: BenchRequest, output: Output, queue_ms: float) -> Frame | None:
        """The point's last frame; None if it is another worker's from here.

        Raises what opening the engine and running on it raise.
        """
        self._status.begin("benchmarking")
        with ExitStack() as stack, suppress(BenchStopped):
            engine = self._lending.borrow(stack, self._spec_of(request), output, alone=True)
            if engine is not None:
                return self._measure_on(engine, request, output, queue_ms)
        if output.cancelled.is_set():
            return Done("cancelled", "", replace(NEVER_BEGAN, queue_ms=queue_ms))
        return None

    def _measure_on(self, engine: Engine, request: BenchRequest, output: Output, queue_ms: float) -> Measured:
        output.frame(Started(self._worker, engine.name, engine.backend.name, request.context, queue_ms))
        spans: list[TraceSpan] = []
        size = (request.context, request.tokens, request.repeats)
        trace = TRACED if request.trace else None
        point = Point(*size, request.sampling, trace, streams=request.streams)
        measurement = run_point(
            engine.backend,
            engine.model,
            point,
            on_trace=spans.extend,
            on_progress=output.frame,
            stop=lambda: output.cancelled.is_set() or output.lost.is_set() or self._stopping.has_begun,
        )
        return Measured(measurement.to_dict(), _packed_trace(spans, [d.name for d in measurement.devices]))

    def _spec_of(self, point: BenchRequest) -> EngineSpec:
        """What the point names: one of the worker's own with its options, but for `sync` and enough rows.

        Of the others, too, keys and values are kept as the worker keeps them.
        """
        now = self._heartbeat.now
        own = self._models.find(point.model or now.model)
        options = self._models.specs[0].options
        kept = {CACHE: options[CACHE]} if CACHE in options else {}
        asked = EngineSpec(point.model, point.backend, point.devices, kept, rows=point.streams)
        if (
            own is not None
            and asked.backend in (own.backend, now.backend)
            and asked.devices == len(now.devices)
        ):
            here = self._models.pool.loaded(own)
            if here is not None and here.backend.rows < own.rows:  # asking for more again gives no more
                require_rows(here.backend, here.name, point.streams)
            rows = max(own.rows, point.streams)
            asked = replace(own, devices=point.devices, fewer=False, rows=rows)  # it may run on fewer
            if point.sync == now.sync:
                return asked
        return replace(asked, options={**asked.options, "sync": point.sync}) if point.sync else asked


def _packed_trace(spans: Sequence[TraceSpan], devices: Sequence[str]) -> str:
    """The spans as `Measured` carries them."""
    if not spans:
        return ""
    data = pack_trace(chrome_trace(spans, devices=devices))
    if len(data) > MAX_TRACE_BYTES:
        log.warning("a trace of %d bytes is not sent; at most %d are", len(data), MAX_TRACE_BYTES)
        return ""
    return base64.b64encode(data).decode("ascii")
