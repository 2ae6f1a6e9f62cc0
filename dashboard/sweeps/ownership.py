"""The life of a sweep run, as the process that works on it writes it.

That process holds an `owner` token; every write on its behalf names the token and the state it expects, so
that a process that was overtaken changes nothing. The reaper hands on runs that lost their process.
Heartbeats go by the database's clock, which all processes share.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import models, transaction
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from dashboard.live import notifications
from dashboard.measurements.services import record_measurement
from dashboard.models import ACTIVE, Configuration, Measurement, Point, State, SweepRun
from dashboard.regressions import services as regressions
from dashboard.sweeps import devices, transitions
from dashboard.sweeps.transitions import announce, change, count_tried, enqueue_next, free_devices, give_up
from engine.errors import MeasurementError

log = structlog.get_logger(__name__)

STALE_AFTER = timedelta(seconds=45)
"""A run whose heartbeat is older has lost its process (a heartbeat comes every two seconds)."""
REMIND_AFTER = timedelta(minutes=10)
"""A run queued for longer than this since Celery was told is told again: the broker may have forgotten."""
MAX_RESUMES = 5
"""A run that loses its process more often than this is given up: something in it kills processes."""


def claim_run(*, run_id: int, owner: str) -> SweepRun | None:
    """Takes a queued run and its devices. None if somebody else has it, it has ended, or it must wait for
    another sweep on one of its devices; in that case the one that is next in line is told of."""
    with transaction.atomic():
        run = SweepRun.objects.filter(pk=run_id, state=State.QUEUED).first()
        if run is None:
            return None
        if not devices.take(run):
            enqueue_next()
            return None
        won = change(
            SweepRun.objects.filter(pk=run_id, state=State.QUEUED),
            state=State.RUNNING,
            owner=owner,
            heartbeat=Now(),
            started=Coalesce(F("started"), Now(), output_field=models.DateTimeField()),
        )
        if not won:  # cancelled, or taken, in this moment
            devices.free(run_id)
            return None
    announce(run_id=run_id)
    return SweepRun.objects.get(pk=run_id)


def heartbeat(*, run_id: int, owner: str, label: str) -> bool:
    """Says that the run lives. False if it is no longer this owner's: stop at once."""
    mine = SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner)
    if mine.exclude(label=label).update(label=label, heartbeat=Now(), version=F("version") + 1):
        announce(run_id=run_id)
        return True
    return bool(mine.update(heartbeat=Now()))


def claim_point(*, run_id: int, owner: str) -> Point | None:
    """The next point to ask for: one that an earlier process had begun, else the first queued one.

    None if all have ended or the run is not this owner's. A begun point keeps its request, so asking again
    does not measure again.
    """
    with transaction.atomic():
        if not SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner).exists():
            return None
        points = Point.objects.filter(run_id=run_id, current=True).select_related("run").order_by("index")
        if begun := points.filter(state=State.RUNNING).first():
            return begun
        point = points.filter(state=State.QUEUED).first()
        if point is None:
            return None
        point.state, point.started, point.request_id = State.RUNNING, timezone.now(), f"bench-{uuid.uuid4()}"
        won = Point.objects.filter(pk=point.pk, state=State.QUEUED).update(
            state=point.state, started=point.started, request_id=point.request_id
        )
        return point if won else None


def finish_point(*, point: Point, owner: str, document: Mapping[str, Any], worker: str) -> Measurement | None:
    """Stores a point's measurement. None if the point is no longer this owner's.

    Raises MeasurementError if the document is no measurement, or one of something else than the point.
    """
    with transaction.atomic():
        if not _end_point(point, owner, state=State.FINISHED, worker=worker):
            return None
        source = f"sweep run {point.run_id}"
        measurement, _ = record_measurement(document=document, source=source, point=point)
        _check_answers(measurement.configuration, point)
        transaction.on_commit(lambda: notifications.measurement_added(measurement.pk))
        regressions.judge_later([measurement.configuration_id])
    announce(run_id=point.run_id)
    return measurement


def _check_answers(measured: Configuration, point: Point) -> None:
    """Raises MeasurementError if a worker measured otherwise than the point asks for."""
    for name in ("devices", "sync"):
        found, asked = getattr(measured, name), getattr(point, name)
        if asked and found != asked:
            raise MeasurementError(
                f"the worker measured with {name} {found!r}; the point asks for {asked!r}: update the worker,"
                " or start one that can do this, then retry the point"
            )


def fail_point(*, point: Point, owner: str, code: str, message: str, worker: str) -> bool:
    """Stores a point's failure. False if the point is no longer this owner's."""
    with transaction.atomic():
        error = message or f"The worker gave no reason (code {code})."
        won = _end_point(point, owner, state=State.FAILED, worker=worker, error_code=code, error=error)
    if won:
        announce(run_id=point.run_id)
    return won


def _end_point(point: Point, owner: str, **values: Any) -> bool:
    mine = Point.objects.filter(
        pk=point.pk, state=State.RUNNING, run__owner=owner, run__state=State.RUNNING, current=True
    )
    if not mine.update(ended=timezone.now(), **values):
        return False
    change(SweepRun.objects.filter(pk=point.run_id), done=count_tried(point.run_id))
    return True


def finish_run(*, run_id: int, owner: str) -> bool:
    """Ends a run whose points have all ended, as failed if one of them failed. False if it is not ours."""
    with transaction.atomic():
        states = set(Point.objects.filter(run_id=run_id, current=True).values_list("state", flat=True))
        if states & set(ACTIVE):
            return False
        worst = next((s for s in (State.FAILED, State.CANCELLED) if s in states), State.FINISHED)
        won = change(
            SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner),
            state=worst,
            ended=timezone.now(),
            owner="",
            label="",
        )
        if won:
            free_devices(run_id)
    announce(run_id=run_id)
    return bool(won)


def fail_run(*, run_id: int, owner: str, message: str) -> bool:
    """Gives a run up because of an error that is not one point's. Its open points fail with it."""
    with transaction.atomic():
        won = give_up(SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner), run_id, message)
    announce(run_id=run_id)
    return won


def release_run(*, run_id: int, owner: str) -> bool:
    """Hands a run back to the queue, for a process that is asked to stop. The next one goes on from there."""
    with transaction.atomic():
        won = change(
            SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner),
            state=State.QUEUED,
            owner="",
            label="waiting for a Celery worker",
            enqueued=None,
        )
        if won:
            devices.free(run_id)
    return bool(won)


@dataclass(frozen=True, slots=True)
class Reaped:
    """Keys of the runs that were queued again, given up, or of which Celery was told once more."""

    resumed: list[int]
    failed: list[int]
    reminded: list[int]


def reap(*, now: datetime | None = None, remind_after: timedelta = REMIND_AFTER) -> Reaped:
    """Finds runs that lost their process, and queued runs that Celery has forgotten. Safe at any time.

    `remind_after` is how long a run may be queued before Celery is told of it again; a second telling
    does no harm, since only one task gets the run.
    """
    moment = Now() if now is None else Value(now, output_field=models.DateTimeField())
    stale = Q(state=State.RUNNING, heartbeat__lt=moment - STALE_AFTER)
    found = Reaped([], [], [])
    for run in SweepRun.objects.filter(stale):
        mine = SweepRun.objects.filter(stale, pk=run.pk, owner=run.owner)
        with transaction.atomic():
            if run.resumed >= MAX_RESUMES:
                message = (
                    f"The process that ran it was lost {MAX_RESUMES + 1} times; see the Celery worker's log."
                )
                if give_up(mine, run.pk, message):
                    found.failed.append(run.pk)
            elif change(
                mine, state=State.QUEUED, owner="", enqueued=None, resumed=F("resumed") + 1, label="resuming"
            ):
                devices.free(run.pk)
                found.resumed.append(run.pk)
        announce(run_id=run.pk)
    forgotten = Q(enqueued__isnull=True) | Q(enqueued__lte=moment - remind_after)
    for key in SweepRun.objects.filter(forgotten, state=State.QUEUED).values_list("pk", flat=True):
        won = SweepRun.objects.filter(forgotten, pk=key, state=State.QUEUED).update(enqueued=moment)
        if won and transitions.enqueue(key):
            found.reminded.append(key)
    if found.resumed or found.failed:
        log.warning("sweep_runs_reaped", resumed=found.resumed, failed=found.failed)
    return found
