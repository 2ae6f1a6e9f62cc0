"""Starting, cancelling and retrying sweep runs. Keyword-only, one transaction each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone

from dashboard import circuit_breaker
from dashboard.audit import log as audit
from dashboard.errors import NothingToDo, SweepBusy
from dashboard.models import ACTIVE, ENDED, Point, State, Sweep, SweepRun, Trigger
from dashboard.models.sweeps import device_of
from dashboard.sweeps import bench_client
from dashboard.sweeps.crontab import latest_slot
from dashboard.sweeps.matrix import AXES, expand
from dashboard.sweeps.transitions import announce, change, count_tried, free_devices

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = structlog.get_logger(__name__)

CLOCK_SKEW = timedelta(seconds=30)
"""Beat may tell of a time that this machine's clock has not reached."""
_BY = {
    Trigger.ADMIN: "the admin",
    Trigger.PAGE: "the dashboard",
    Trigger.SHELL: "a shell",
    Trigger.SCHEDULE: "its schedule",
}


def start_sweep(*, sweep: Sweep, trigger: Trigger, who: User | None = None) -> SweepRun:
    """Makes a run with all its points; a collector finds it.

    Raises SweepBusy if the sweep has a run that has not ended, ValidationError if its matrix is not valid.
    """
    specs = expand(sweep.matrix)
    try:
        with transaction.atomic():
            run = SweepRun.objects.create(
                sweep=sweep,
                name=sweep.name,
                repeats=sweep.repeats,
                trace=sweep.trace,
                device=device_of(spec.backend for spec in specs),
                trigger=trigger,
                who=who,
                total=len(specs),
            )
            Point.objects.bulk_create(
                Point(run=run, index=index, **spec.columns) for index, spec in enumerate(specs)
            )
            _record(who, run, "sweep started", f"{len(specs)} points", by=_BY[trigger])
    except IntegrityError as error:
        active = SweepRun.objects.filter(sweep=sweep, state__in=ACTIVE).first()
        if active is None:
            raise
        raise SweepBusy(
            f"The sweep {sweep.name} is already {active.state} (run {active.pk}); wait for it or cancel it."
        ) from error
    return run


def start_scheduled(*, sweep: Sweep, now: datetime | None = None) -> SweepRun | None:
    """Starts `sweep` for the latest time of its schedule, unless that has been served: then None.

    Celery may be told of one time twice, and of many at once when it has been away; all that was missed is
    one time, the latest. Raises SweepBusy if the last run has not ended (the time counts as served).
    """
    slot = latest_slot(sweep.crontab, (now or timezone.now()) + CLOCK_SKEW) if sweep.crontab else None
    if slot is None:
        return None
    unserved = Q(slot__isnull=True) | Q(slot__lt=slot)
    if not Sweep.objects.filter(unserved, pk=sweep.pk).update(slot=slot):
        return None
    return start_sweep(sweep=sweep, trigger=Trigger.SCHEDULE)


def cancel(*, run: SweepRun, who: User | None = None) -> None:
    """Ends a queued or running run now; the point being measured is asked to stop. Raises NothingToDo."""
    now = timezone.now()
    with transaction.atomic():
        won = change(SweepRun.objects.filter(pk=run.pk, state__in=ACTIVE), state=State.CANCELLED, ended=now)
        if not won:
            raise NothingToDo(f"Run {run.pk} has already ended; there is nothing to cancel.")
        in_flight = list(
            Point.objects.filter(run=run, state=State.RUNNING).values_list("request_id", flat=True)
        )
        Point.objects.filter(run=run, state__in=ACTIVE).update(state=State.CANCELLED, ended=now)
        SweepRun.objects.filter(pk=run.pk).update(label="", done=count_tried(run.pk))
        _record(who, run, "sweep cancelled")
        transaction.on_commit(lambda: _withdraw(in_flight))
        free_devices(run.pk)
    announce(run_id=run.pk)


def retry_failed(*, run: SweepRun, who: User | None = None) -> int:
    """Queues the run's failed points once more, and only those; returns how many.

    Raises NothingToDo if the run has not ended or none of its points failed, SweepBusy if the sweep has
    meanwhile been started again.
    """
    try:
        with transaction.atomic():
            won = change(
                SweepRun.objects.filter(pk=run.pk, state__in=ENDED),
                state=State.QUEUED,
                attempt=F("attempt") + 1,
                ended=None,
                error="",
            )
            if not won:
                raise NothingToDo(f"Run {run.pk} has not ended; its failed points can be retried afterwards.")
            failed = list(Point.objects.filter(run=run, state=State.FAILED, current=True))
            if not failed:
                raise NothingToDo(f"No point of run {run.pk} failed; there is nothing to retry.")
            Point.objects.filter(pk__in=[p.pk for p in failed]).update(current=False)
            Point.objects.bulk_create(_again(point) for point in failed)
            SweepRun.objects.filter(pk=run.pk).update(done=count_tried(run.pk))
            _record(who, run, "failed points retried", f"{len(failed)} points")
    except IntegrityError as error:
        raise SweepBusy(
            f"The sweep {run.name} is queued or running again; retry run {run.pk} when it has ended."
        ) from error
    announce(run_id=run.pk)
    return len(failed)


def _again(failed: Point) -> Point:
    measured = {axis: getattr(failed, axis) for axis in AXES}
    return Point(run_id=failed.run_id, index=failed.index, attempt=failed.attempt + 1, **measured)


def _withdraw(request_ids: Iterable[str | None]) -> None:
    for request_id in filter(None, request_ids):
        try:
            bench_client.cancel(request_id)
        except Exception as error:  # the run is cancelled all the same; its answer will not be read
            circuit_breaker.redis_circuit.trip()
            log.warning("bench_cancel_lost", request=request_id, error=str(error))


def _record(who: User | None, run: SweepRun, act: str, detail: str = "", *, by: str = "a shell") -> None:
    audit.record(act, run, who=who, by=by, url=run.get_absolute_url(), detail=detail)
