"""Works through the sweep runs that have not ended: begins them, asks for their points, stores the answers.

Runs in a thread of each Celery worker, or in a shell. A collector owns nothing: what it does follows from
the rows and from the answers on Redis. Each write names the state that it expects (`lifecycle`), and a
point's request id is in the database before the request is sent; the inbox takes an id once, and its lease is
the only one. So collectors may work beside each other, and one that is killed at any moment loses nothing:
the next look of any of them goes on from the rows and measures nothing twice.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from django.db import Error as DatabaseError
from django.db import close_old_connections

from dashboard.models import ACTIVE, Measurement, Point, SweepRun
from dashboard.sweeps import bench_client, lifecycle
from dashboard.traces.store import store_trace
from engine import replies
from engine.errors import MeasurementError
from engine.progress import Progress
from engine.sampling import SamplingParams
from engine.serving.errors import QueueFull, QueueUnavailable
from engine.serving.messages import BenchRequest, Done, Failed, Frame, Measured, Request, Started
from engine.serving.reading import FROM_START, StreamFrame

log = structlog.get_logger(__name__)

PAUSE_S = 0.5
"""Between two looks at everything; pages are told of news this often at most."""
BEAT_S = 2.0
"""A label that does not change is written again after so long."""
ASK_AGAIN_S = 10.0
"""While a worker says nothing, the request is sent again (the same id), should Redis have lost it."""


class Bench(Protocol):
    """What the collector needs of `engine.serving.client.Client`."""

    def submit(self, request: Request) -> int: ...
    def read(self, request_id: str, after: str) -> list[StreamFrame]: ...
    def position(self, request_id: str) -> int | None: ...


@dataclass(slots=True)
class _Wait:
    """How far the answer to the request of a run's point is."""

    point: int
    after: str = FROM_START
    worker: str = ""
    news: str = ""
    asked: float = float("-inf")
    heard: float = float("-inf")


@dataclass(slots=True)
class _Label:
    text: str = ""
    written: float = float("-inf")


def run(stopping: threading.Event) -> None:
    """Looks at all runs until `stopping` is set."""
    with bench_client.connect() as bench:
        collector = Collector(bench)
        while not stopping.wait(PAUSE_S):
            close_old_connections()
            try:
                collector.collect_all()
            except DatabaseError as error:  # nothing can be written now
                log.warning("sweeps_not_collected", error=str(error))


@dataclass(slots=True)
class Collector:
    bench: Bench
    on_change: Callable[[str], None] | None = None
    clock: Callable[[], float] = time.monotonic
    _waits: dict[int, _Wait] = field(default_factory=dict)
    _labels: dict[int, _Label] = field(default_factory=dict)

    def collect_all(self) -> None:
        """One look at every run that has not ended, first come first. Raises django.db.Error."""
        active = SweepRun.objects.filter(state__in=ACTIVE).order_by("created", "pk")
        keys = list(active.values_list("pk", flat=True))
        for known in (self._waits, self._labels):
            for ended in known.keys() - set(keys):
                del known[ended]
        for run_id in keys:
            self.collect(run_id)

    def collect(self, run_id: int) -> bool:
        """One look at a run: stores what has come, asks for what is next. Whether it still has to go on.

        An error of our own fails the run. Raises django.db.Error.
        """
        try:
            lifecycle.begin_run(run_id=run_id)
            while point := lifecycle.next_point(run_id=run_id):
                answer = self._answer(point)
                if answer is None:
                    return True
                self._store(point, answer)
            lifecycle.finish_run(run_id=run_id)
        except DatabaseError:
            raise
        except Exception as error:
            log.exception("sweep_run_failed", run=run_id)
            lifecycle.fail_run(run_id=run_id, message=f"{type(error).__name__}: {error}")
        return SweepRun.objects.filter(pk=run_id, state__in=ACTIVE).exists()

    def _answer(self, point: Point) -> Measured | Failed | None:
        """What has come for the point since the last look, if that is the end of it."""
        wait = self._waits.get(point.run_id)
        if wait is None or wait.point != point.pk:
            wait = self._waits[point.run_id] = _Wait(point.pk)
        try:
            self._ask(point, wait)
            frames = self.bench.read(point.request_id or "", wait.after)
        except (QueueUnavailable, QueueFull) as error:
            frames, wait.news = [], str(error)
        for entry in frames:
            wait.after, wait.heard = entry.id, self.clock()
            if answer := _take(wait, entry.frame):
                return answer
        self._note(point.run, f"point {point.index + 1} of {point.run.total}: {wait.news}"[:300])
        return None

    def _ask(self, point: Point, wait: _Wait) -> None:
        now = self.clock()
        if now - max(wait.asked, wait.heard) < ASK_AGAIN_S:
            return
        self.bench.submit(_request(point))
        wait.asked = now
        if not wait.worker:
            position = self.bench.position(point.request_id or "")
            wait.news = f"waiting for a worker, place {position}" if position else "waiting for a worker"

    def _note(self, run: SweepRun, text: str) -> None:
        """Writes what is new at once, the rest when it is due."""
        label = self._labels.setdefault(run.pk, _Label())
        if text == label.text and self.clock() - label.written < BEAT_S:
            return
        lifecycle.note(run_id=run.pk, label=text)
        if self.on_change and text != label.text:
            self.on_change(text)
        label.text, label.written = text, self.clock()

    def _store(self, point: Point, answer: Measured | Failed) -> None:
        worker = self._waits.pop(point.run_id).worker
        if isinstance(answer, Measured):
            try:
                stored = lifecycle.finish_point(point=point, document=answer.measurement, worker=worker)
                if stored is not None and answer.trace:
                    _keep_trace(stored, answer.trace)
                return
            except MeasurementError as error:
                answer = Failed.of(error.reply, str(error))
        lifecycle.fail_point(point=point, code=answer.code, message=answer.message, worker=worker)


def _take(wait: _Wait, frame: Frame) -> Measured | Failed | None:
    """Notes what a frame says; the answer if it is one."""
    match frame:
        case Measured() | Failed():
            return frame
        case Done():
            return Failed.of(
                replies.CANCELLED, "The worker stopped this point before it was measured; retry it."
            )
        case Started():
            wait.worker = frame.worker
            wait.news = f"measuring on {frame.worker}"
        case Progress():
            far = f"{frame.done} of {frame.total} {frame.unit}" if frame.total else ""
            wait.news = f"{': '.join(filter(None, (frame.what, far)))} on {wait.worker or 'a worker'}"
    return None


def _keep_trace(measurement: Measurement, encoded: str) -> None:
    """A trace that cannot be kept costs the page its waterfall, not the measurement."""
    try:
        data = base64.b64decode(encoded, validate=True)
        store_trace(measurement=measurement, data=data, source=measurement.source)
    except (ValueError, MeasurementError) as error:
        log.warning("trace_not_kept", run=measurement.pk, error=str(error))


def _request(point: Point) -> BenchRequest:
    return BenchRequest(
        id=point.request_id or "",
        model=point.model,
        backend=point.backend,
        devices=point.devices,
        sync=point.sync,
        streams=point.streams,
        context=point.context,
        tokens=point.tokens,
        repeats=point.run.repeats,
        trace=point.run.trace,
        sampling=SamplingParams(**point.sampling),
    )
