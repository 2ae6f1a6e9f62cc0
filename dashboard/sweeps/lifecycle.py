"""The life of a sweep run, as a collector writes it.

A collector holds nothing: every write is an UPDATE whose WHERE names the state that it expects, so that of
two collectors at work beside each other one writes and the other changes nothing. `heartbeat` tells pages
that somebody looks at the run; it goes by the database's clock, and nothing else depends on it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db import models, transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from dashboard.live import notifications
from dashboard.measurements.services import record_measurement
from dashboard.models import ACTIVE, Configuration, Measurement, Point, State, SweepRun
from dashboard.regressions import services as regressions
from dashboard.sweeps import devices
from dashboard.sweeps.transitions import announce, change, count_tried, free_devices, give_up
from engine.errors import MeasurementError


def begin_run(*, run_id: int) -> bool:
    """Takes a queued run's devices and starts it. False if it does not wait, or waits for another sweep."""
    with transaction.atomic():
        waiting = SweepRun.objects.filter(pk=run_id, state=State.QUEUED)
        run = waiting.first()
        if run is None or not devices.take(run):
            return False
        started = Coalesce(F("started"), Now(), output_field=models.DateTimeField())
        if not change(waiting, state=State.RUNNING, heartbeat=Now(), started=started):
            devices.free(run_id)  # cancelled in this moment
            return False
    announce(run_id=run_id)
    return True


def note(*, run_id: int, label: str) -> None:
    """Says that somebody looks at a running run, and what it is doing."""
    running = SweepRun.objects.filter(pk=run_id, state=State.RUNNING)
    if change(running.exclude(label=label), label=label, heartbeat=Now()):
        announce(run_id=run_id)
    else:
        running.update(heartbeat=Now())


def next_point(*, run_id: int) -> Point | None:
    """The point to ask for: the one that was asked for already, else the first queued one.

    None if the run does not run, or all its points have ended. A point that was begun keeps its request, so
    asking again does not measure again. The run's row is locked: two collectors begin the same point.
    """
    with transaction.atomic():
        if SweepRun.objects.select_for_update().filter(pk=run_id, state=State.RUNNING).first() is None:
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


def finish_point(*, point: Point, document: Mapping[str, Any], worker: str) -> Measurement | None:
    """Stores a point's measurement. None if the point has ended: measured, failed or cancelled.

    Raises MeasurementError if the document is no measurement, or one of something else than the point.
    """
    with transaction.atomic():
        if not _end_point(point, state=State.FINISHED, worker=worker):
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
    for name in ("devices", "sync", "streams"):
        found, asked = getattr(measured, name), getattr(point, name)
        if asked and found != asked:
            raise MeasurementError(
                f"the worker measured with {name} {found!r}; the point asks for {asked!r}: update the worker,"
                " or start one that can do this, then retry the point"
            )


def fail_point(*, point: Point, code: str, message: str, worker: str) -> bool:
    """Stores a point's failure. False if the point has ended."""
    with transaction.atomic():
        error = message or f"The worker gave no reason (code {code})."
        won = _end_point(point, state=State.FAILED, worker=worker, error_code=code, error=error)
    if won:
        announce(run_id=point.run_id)
    return won


def _end_point(point: Point, **values: Any) -> bool:
    open_point = Point.objects.filter(
        pk=point.pk, state=State.RUNNING, run__state=State.RUNNING, current=True
    )
    if not open_point.update(ended=timezone.now(), **values):
        return False
    change(SweepRun.objects.filter(pk=point.run_id), done=count_tried(point.run_id))
    return True


def finish_run(*, run_id: int) -> bool:
    """Ends a running run whose points have all ended, as failed if one of them failed."""
    with transaction.atomic():
        states = set(Point.objects.filter(run_id=run_id, current=True).values_list("state", flat=True))
        if states & set(ACTIVE):
            return False
        worst = next((s for s in (State.FAILED, State.CANCELLED) if s in states), State.FINISHED)
        running = SweepRun.objects.filter(pk=run_id, state=State.RUNNING)
        if not change(running, state=worst, ended=timezone.now(), label=""):
            return False
        free_devices(run_id)
    announce(run_id=run_id)
    return True


def fail_run(*, run_id: int, message: str) -> bool:
    """Gives a run up because of an error that is not one point's. Its open points fail with it."""
    with transaction.atomic():
        won = give_up(SweepRun.objects.filter(pk=run_id, state=State.RUNNING), run_id, message)
    announce(run_id=run_id)
    return won
