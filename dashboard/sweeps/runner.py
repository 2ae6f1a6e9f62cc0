"""Works through one sweep run: claim, ask for each point, wait with heartbeats, store, end.

Runs in a Celery task or in a shell; both call `work_on`. It owns no state of its own: killed at any
moment, it leaves rows from which the next process goes on without measuring anything twice, because a
point's request id is in the database before the request is sent, and the inbox takes an id once.
"""

from __future__ import annotations

import base64
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from django.db import Error as DatabaseError

from dashboard.models import Measurement, Point, SweepRun
from dashboard.sweeps import ownership
from dashboard.traces.store import store_trace
from engine.errors import MeasurementError
from engine.sampling import SamplingParams
from engine.serving.errors import QueueFull, QueueUnavailable
from engine.serving.messages import BenchRequest, Done, Failed, Frame, Measured, Progress, Request, Started
from engine.serving.reading import FROM_START, StreamFrame

log = structlog.get_logger(__name__)

WAIT_S = 1.0
"""The longest that one read waits; a cancelled run stops within it."""
BEAT_S = 2.0
NEWS_S = 0.5
"""A changed label is written at most this often: pages are told twice a second at most."""
ASK_AGAIN_S = 10.0
"""While a worker says nothing, the request is sent again (the same id), should Redis have lost it."""


class Bench(Protocol):
    """What the runner needs of `engine.serving.client.Client`."""

    def submit(self, request: Request) -> int: ...
    def read(self, request_id: str, after: str, *, block_s: float) -> list[StreamFrame]: ...
    def position(self, request_id: str) -> int | None: ...


class _Lost(Exception):
    """The run is no longer ours: cancelled, or taken over."""


class _Stopped(Exception):
    """This process was asked to stop."""


@dataclass(slots=True)
class _Wait:
    """How far the answer to one point's request is."""

    point: Point
    after: str = FROM_START
    worker: str = ""
    news: str = ""
    asked: float = float("-inf")
    heard: float = float("-inf")


def new_owner() -> str:
    """A token that no other process will ever use, readable in the admin."""
    return f"{socket.gethostname()[:32]}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


def work_on(
    run_id: int,
    bench: Bench,
    *,
    stopping: threading.Event | None = None,
    on_change: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Runs what is left of a sweep run. True if it reached the run's end, False if another process has
    it, it was cancelled, or `stopping` was set (the run then goes back to the queue)."""
    owner = new_owner()
    run = ownership.claim_run(run_id=run_id, owner=owner)
    if run is None:
        return False
    return _Runner(run, owner, bench, stopping or threading.Event(), on_change, clock).work()


class _Runner:
    def __init__(
        self,
        run: SweepRun,
        owner: str,
        bench: Bench,
        stopping: threading.Event,
        on_change: Callable[[str], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._run = run
        self._owner = owner
        self._bench = bench
        self._stopping = stopping
        self._on_change = on_change
        self._clock = clock
        self._label = ""
        self._beaten = float("-inf")

    def work(self) -> bool:
        run_id, owner = self._run.pk, self._owner
        try:
            while point := ownership.claim_point(run_id=run_id, owner=owner):
                self._finish(_Wait(point))
            return ownership.finish_run(run_id=run_id, owner=owner)
        except _Lost:
            return False
        except _Stopped:
            ownership.release_run(run_id=run_id, owner=owner)
            return False
        except DatabaseError:  # nothing can be written now; the reaper hands the run on
            raise
        except Exception as error:
            log.exception("sweep_run_failed", run=run_id)
            ownership.fail_run(run_id=run_id, owner=owner, message=f"{type(error).__name__}: {error}")
            raise

    def _finish(self, wait: _Wait) -> None:
        """Waits for the point's answer and stores it."""
        point = wait.point
        answer = self._answer(wait)
        if isinstance(answer, Measured):
            try:
                stored = ownership.finish_point(
                    point=point, owner=self._owner, document=answer.measurement, worker=wait.worker
                )
                if stored is not None and answer.trace:
                    _keep_trace(stored, answer.trace)
                return
            except MeasurementError as error:
                answer = Failed("bad_measurement", str(error))
        ownership.fail_point(
            point=point, owner=self._owner, code=answer.code, message=answer.message, worker=wait.worker
        )

    def _answer(self, wait: _Wait) -> Measured | Failed:
        while True:
            if self._stopping.is_set():
                raise _Stopped
            try:
                self._ask(wait)
                frames = self._bench.read(wait.point.request_id or "", wait.after, block_s=WAIT_S)
            except (QueueUnavailable, QueueFull) as error:
                frames = []
                wait.news = str(error)
                self._stopping.wait(WAIT_S)
            for entry in frames:
                wait.after, wait.heard = entry.id, self._clock()
                if answer := _take(wait, entry.frame):
                    return answer
            self._beat(wait)

    def _ask(self, wait: _Wait) -> None:
        now = self._clock()
        if now - max(wait.asked, wait.heard) < ASK_AGAIN_S:
            return
        self._bench.submit(_request(wait.point, self._run))
        wait.asked = now
        if not wait.worker:
            position = self._bench.position(wait.point.request_id or "")
            wait.news = f"waiting for a worker, place {position}" if position else "waiting for a worker"

    def _beat(self, wait: _Wait) -> None:
        """Writes the heartbeat when it is due, sooner if there is news. Raises _Lost."""
        label = f"point {wait.point.index + 1} of {self._run.total}: {wait.news}"[:300]
        since = self._clock() - self._beaten
        if since < (BEAT_S if label == self._label else NEWS_S):
            return
        if not ownership.heartbeat(run_id=self._run.pk, owner=self._owner, label=label):
            raise _Lost
        self._label, self._beaten = label, self._clock()
        if self._on_change:
            self._on_change(label)


def _take(wait: _Wait, frame: Frame) -> Measured | Failed | None:
    """Notes what a frame says; the answer if it is one."""
    match frame:
        case Measured() | Failed():
            return frame
        case Done():
            return Failed(
                "cancelled", "The worker stopped this point before it was measured; retry it.", retryable=True
            )
        case Started():
            wait.worker = frame.worker
            wait.news = f"measuring on {frame.worker}"
        case Progress():
            wait.news = f"{frame.done} of {frame.total} {frame.unit} on {wait.worker or 'a worker'}"
    return None


def _keep_trace(measurement: Measurement, encoded: str) -> None:
    """A trace that cannot be kept costs the page its waterfall, not the measurement."""
    try:
        data = base64.b64decode(encoded, validate=True)
        store_trace(measurement=measurement, data=data, source=measurement.source)
    except (ValueError, MeasurementError) as error:
        log.warning("trace_not_kept", run=measurement.pk, error=str(error))


def _request(point: Point, run: SweepRun) -> BenchRequest:
    return BenchRequest(
        id=point.request_id or "",
        model=point.model,
        backend=point.backend,
        devices=point.devices,
        sync=point.sync,
        context=point.context,
        tokens=point.tokens,
        repeats=run.repeats,
        trace=run.trace,
        sampling=SamplingParams(**point.sampling),
    )
