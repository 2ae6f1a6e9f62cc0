"""The verbs of the dashboard: everything that changes a row. Keyword-only, one transaction each.

Whoever works on a sweep run holds an `owner` token; every write on its behalf names that token and the
state it expects, so that a process that was overtaken (or a second click) changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from dashboard import audit, bench_queue, devices, hints, pause, task_queue
from dashboard.errors import NothingToDo, SweepBusy, UnknownSweep
from dashboard.ingest import columns_of, configuration_of, digest_of, spread_of
from dashboard.matrix import AXES, expand
from dashboard.models import (
    ACTIVE,
    ENDED,
    Configuration,
    Measurement,
    Point,
    Spread,
    State,
    Sweep,
    SweepRun,
    Trigger,
)
from dashboard.models.sweeps import device_of
from dashboard.preset_files import presets
from dashboard.regressions import services as regressions
from dashboard.schedule import latest_slot, parse_crontab
from engine.errors import MeasurementError
from engine.measuring.measurement import Measurement as Result

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = structlog.get_logger(__name__)

RUN_TASK = "dashboard.run_sweep"
SCHEDULED_TASK = "dashboard.start_scheduled"
REAP_TASK = "dashboard.reap"
STALE_AFTER = timedelta(seconds=45)
"""A run whose heartbeat is older has lost its process (a heartbeat comes every two seconds)."""
REMIND_AFTER = timedelta(minutes=10)
"""A run queued for longer than this since Celery was told is told again: the broker may have forgotten."""
CLOCK_SKEW = timedelta(seconds=30)
"""Beat may tell of a time that this machine's clock has not reached."""
MAX_RESUMES = 5
"""A run that loses its process more often than this is given up: something in it kills processes."""


# Starting, stopping ----------------------------------------------------------------------------------
def start_sweep(*, sweep: Sweep, trigger: Trigger, who: User | None = None, enqueue: bool = True) -> SweepRun:
    """Makes a run with all its points and tells Celery (unless `enqueue` is off: then the caller runs it).

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
                enqueued=timezone.now(),
            )
            Point.objects.bulk_create(
                Point(run=run, index=index, **spec.columns) for index, spec in enumerate(specs)
            )
            _log(who, run, "sweep started", f"{len(specs)} points", by=_BY[trigger])
            if enqueue:
                transaction.on_commit(lambda: _tell_celery(run.pk))
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
        won = _change(SweepRun.objects.filter(pk=run.pk, state__in=ACTIVE), state=State.CANCELLED, ended=now)
        if not won:
            raise NothingToDo(f"Run {run.pk} has already ended; there is nothing to cancel.")
        in_flight = list(
            Point.objects.filter(run=run, state=State.RUNNING).values_list("request_id", flat=True)
        )
        Point.objects.filter(run=run, state__in=ACTIVE).update(state=State.CANCELLED, ended=now)
        SweepRun.objects.filter(pk=run.pk).update(owner="", label="", done=_tried_points(run.pk))
        _log(who, run, "sweep cancelled")
        transaction.on_commit(lambda: _withdraw(in_flight))
        _free(run.pk)
    announce(run_id=run.pk)


def retry_failed(*, run: SweepRun, who: User | None = None) -> int:
    """Queues the run's failed points once more, and only those; returns how many.

    Raises NothingToDo if the run has not ended or none of its points failed, SweepBusy if the sweep has
    meanwhile been started again.
    """
    try:
        with transaction.atomic():
            won = _change(
                SweepRun.objects.filter(pk=run.pk, state__in=ENDED),
                state=State.QUEUED,
                attempt=F("attempt") + 1,
                resumed=0,
                ended=None,
                error="",
                enqueued=timezone.now(),
            )
            if not won:
                raise NothingToDo(f"Run {run.pk} has not ended; its failed points can be retried afterwards.")
            failed = list(Point.objects.filter(run=run, state=State.FAILED, current=True))
            if not failed:
                raise NothingToDo(f"No point of run {run.pk} failed; there is nothing to retry.")
            Point.objects.filter(pk__in=[p.pk for p in failed]).update(current=False)
            Point.objects.bulk_create(_again(point) for point in failed)
            SweepRun.objects.filter(pk=run.pk).update(done=_tried_points(run.pk))
            _log(who, run, "failed points retried", f"{len(failed)} points")
            transaction.on_commit(lambda: _tell_celery(run.pk))
    except IntegrityError as error:
        raise SweepBusy(
            f"The sweep {run.name} is queued or running again; retry run {run.pk} when it has ended."
        ) from error
    announce(run_id=run.pk)
    return len(failed)


def _again(failed: Point) -> Point:
    measured = {axis: getattr(failed, axis) for axis in AXES}
    return Point(run_id=failed.run_id, index=failed.index, attempt=failed.attempt + 1, **measured)


def untold(*, run: SweepRun) -> str:
    """Why the run that was just queued has to wait, in a sentence; "" if Celery knows of it."""
    if not SweepRun.objects.filter(pk=run.pk, state=State.QUEUED, enqueued=None).exists():
        return ""
    return (
        f"Run {run.pk} ({run.name}) is queued, but Redis did not answer; check that it runs: "
        "Celery is told of the run a minute or two after its return."
    )


# The life of a run, told by the process that works on it ---------------------------------------------
def claim_run(*, run_id: int, owner: str) -> SweepRun | None:
    """Takes a queued run and its devices. None if somebody else has it, it has ended, or it must wait for
    another sweep on one of its devices; in that case the one that is next in line is told of."""
    now = timezone.now()
    with transaction.atomic():
        run = SweepRun.objects.filter(pk=run_id, state=State.QUEUED).first()
        if run is None:
            return None
        if not devices.take(run):
            _wake_next()
            return None
        won = _change(
            SweepRun.objects.filter(pk=run_id, state=State.QUEUED),
            state=State.RUNNING,
            owner=owner,
            heartbeat=now,
            started=Coalesce(F("started"), now, output_field=models.DateTimeField()),
        )
        if not won:  # cancelled, or taken, in this moment
            devices.free(run_id)
            return None
    announce(run_id=run_id)
    return SweepRun.objects.get(pk=run_id)


def _free(run_id: int) -> None:
    """Gives back a run's devices; whoever waits for them is told, and so are the pages of the queue."""
    devices.free(run_id)
    _wake_next()
    for waiting in SweepRun.objects.filter(state=State.QUEUED).exclude(pk=run_id):
        _change(SweepRun.objects.filter(pk=waiting.pk))
        announce(run_id=waiting.pk)


def _wake_next() -> None:
    """Tells Celery of the runs that nothing stands before any more. More than once does no harm."""

    def tell() -> None:
        for key in devices.startable():
            _tell_celery(key)

    transaction.on_commit(tell)


def heartbeat(*, run_id: int, owner: str, label: str) -> bool:
    """Says that the run lives. False if it is no longer this owner's: stop at once."""
    mine = SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner)
    if mine.exclude(label=label).update(label=label, heartbeat=timezone.now(), version=F("version") + 1):
        announce(run_id=run_id)
        return True
    return bool(mine.update(heartbeat=timezone.now()))


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
        transaction.on_commit(lambda: hints.measurement_added(measurement.pk))
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
    _change(SweepRun.objects.filter(pk=point.run_id), done=_tried_points(point.run_id))
    return True


def finish_run(*, run_id: int, owner: str) -> bool:
    """Ends a run whose points have all ended, as failed if one of them failed. False if it is not ours."""
    with transaction.atomic():
        states = set(Point.objects.filter(run_id=run_id, current=True).values_list("state", flat=True))
        if states & set(ACTIVE):
            return False
        worst = next((s for s in (State.FAILED, State.CANCELLED) if s in states), State.FINISHED)
        won = _change(
            SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner),
            state=worst,
            ended=timezone.now(),
            owner="",
            label="",
        )
        if won:
            _free(run_id)
    announce(run_id=run_id)
    return bool(won)


def fail_run(*, run_id: int, owner: str, message: str) -> bool:
    """Gives a run up because of an error that is not one point's. Its open points fail with it."""
    with transaction.atomic():
        won = _give_up(SweepRun.objects.filter(pk=run_id, state=State.RUNNING, owner=owner), run_id, message)
    announce(run_id=run_id)
    return won


def _give_up(mine: models.QuerySet[SweepRun], run_id: int, message: str) -> bool:
    now = timezone.now()
    if not _change(mine, state=State.FAILED, error=message, ended=now, owner="", label=""):
        return False
    Point.objects.filter(run_id=run_id, state__in=ACTIVE).update(
        state=State.FAILED, error_code="run_failed", error=message, ended=now
    )
    SweepRun.objects.filter(pk=run_id).update(done=_tried_points(run_id))
    _free(run_id)
    return True


def release_run(*, run_id: int, owner: str) -> bool:
    """Hands a run back to the queue, for a process that is asked to stop. The next one goes on from there."""
    with transaction.atomic():
        won = _change(
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
    now = now or timezone.now()
    stale = Q(state=State.RUNNING, heartbeat__lt=now - STALE_AFTER)
    found = Reaped([], [], [])
    for run in SweepRun.objects.filter(stale):
        mine = SweepRun.objects.filter(stale, pk=run.pk, owner=run.owner)
        with transaction.atomic():
            if run.resumed >= MAX_RESUMES:
                message = (
                    f"The process that ran it was lost {MAX_RESUMES + 1} times; see the Celery worker's log."
                )
                if _give_up(mine, run.pk, message):
                    found.failed.append(run.pk)
            elif _change(
                mine, state=State.QUEUED, owner="", enqueued=None, resumed=F("resumed") + 1, label="resuming"
            ):
                devices.free(run.pk)
                found.resumed.append(run.pk)
        announce(run_id=run.pk)
    forgotten = Q(enqueued__isnull=True) | Q(enqueued__lte=now - remind_after)
    for key in SweepRun.objects.filter(forgotten, state=State.QUEUED).values_list("pk", flat=True):
        won = SweepRun.objects.filter(forgotten, pk=key, state=State.QUEUED).update(enqueued=now)
        if won and _tell_celery(key):
            found.reminded.append(key)
    if found.resumed or found.failed:
        log.warning("sweep_runs_reaped", resumed=found.resumed, failed=found.failed)
    return found


# Measurements ----------------------------------------------------------------------------------------
def record_measurement(
    *, document: Mapping[str, Any], source: str, point: Point | None = None
) -> tuple[Measurement, bool]:
    """Stores a schema-1 document once, as it stands; the second value says whether it was new.

    Raises MeasurementError if it is not one, or holds what the database cannot keep.
    """
    result = Result.from_dict(document)
    digest = digest_of(document)
    key = configuration_of(result)
    columns = {**columns_of(result), "document": document, "source": source[:200]}
    spread = spread_of(result)
    try:
        Configuration(**key).clean_fields()
        Measurement(**columns).clean_fields(exclude=["configuration", "digest", "point", "document"])
    except ValidationError as error:
        raise MeasurementError("; ".join(_problems(error))) from error
    with transaction.atomic():
        configuration, _ = Configuration.objects.get_or_create(**key)
        stored, new = Measurement.objects.get_or_create(
            digest=digest, defaults={**columns, "configuration": configuration, "point": point}
        )
        if new:
            Spread.objects.create(measurement=stored, **spread)
    return stored, new


def _problems(error: ValidationError) -> list[str]:
    return [f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items()]


# Sweeps ----------------------------------------------------------------------------------------------
def find_sweep(*, name: str) -> Sweep:
    """The sweep of that name, made from the preset if only the preset exists. Raises UnknownSweep."""
    if found := Sweep.objects.filter(name=name).first():
        return found
    known = {preset.name: preset for preset in presets()}
    if name not in known:
        names = sorted({*known, *Sweep.objects.values_list("name", flat=True)})
        raise UnknownSweep(f"No sweep is called {name!r}; there are {', '.join(names)}.")
    return Sweep.objects.get_or_create(name=name, defaults=asdict(known[name]))[0]


def load_presets(*, using: str = DEFAULT_DB_ALIAS) -> int:
    """Adds the preset sweeps that are missing; one that somebody changed stays changed. Returns how many."""
    known = set(Sweep.objects.using(using).values_list("name", flat=True))
    missing = [preset for preset in presets() if preset.name not in known]
    Sweep.objects.using(using).bulk_create(
        [Sweep(**asdict(preset)) for preset in missing], ignore_conflicts=True
    )
    return len(missing)


def set_schedule(*, sweep: Sweep, crontab: str, enabled: bool = True) -> None:
    """Starts `sweep` at the times of `crontab` (minute hour day-of-month month day-of-week, UTC).

    An empty crontab takes the schedule away. Raises ValidationError if it is not a crontab.
    """
    fields = parse_crontab(crontab) if crontab.strip() else None
    with transaction.atomic():
        old = sweep.schedule
        if fields is None:
            sweep.schedule = None
            sweep.save(update_fields=["schedule"])
            if old:
                old.delete()
            return
        times, _ = CrontabSchedule.objects.get_or_create(**fields, timezone="UTC")
        task = old or PeriodicTask(name=f"sweep {sweep.pk}", task=SCHEDULED_TASK)
        task.crontab, task.enabled, task.args = times, enabled, json.dumps([sweep.pk])
        task.description = f"Starts the sweep {sweep.name}."
        task.save()
        sweep.schedule = task
        sweep.save(update_fields=["schedule"])


def delete_sweep(*, sweep: Sweep) -> None:
    """Deletes a sweep and its schedule; its runs and their measurements stay."""
    with transaction.atomic():
        if sweep.schedule:
            sweep.schedule.delete()
        sweep.delete()


def ensure_reaper(*, using: str = DEFAULT_DB_ALIAS) -> None:
    """Puts the minutely reaper among the periodic tasks; one that an operator changed stays as it is."""
    every, _ = IntervalSchedule.objects.using(using).get_or_create(every=1, period=IntervalSchedule.MINUTES)
    PeriodicTask.objects.using(using).get_or_create(
        task=REAP_TASK,
        defaults={
            "name": "dashboard: resume lost sweep runs",
            "interval": every,
            "expire_seconds": 50,
        },
    )


def announce(*, run_id: int) -> None:
    """Tells open pages that the run changed, once the transaction is through."""

    def send() -> None:
        version = SweepRun.objects.filter(pk=run_id).values_list("version", flat=True).first()
        if version is not None:
            hints.sweep_changed(run_id, version)

    transaction.on_commit(send)


def _change(rows: models.QuerySet[SweepRun], **values: Any) -> int:
    """The conditional UPDATE, counted by `version` so that pages can tell old news from new."""
    return rows.update(version=F("version") + 1, **values)


def _tried_points(run_id: int) -> int:
    return Point.objects.filter(run_id=run_id, current=True, state__in=(State.FINISHED, State.FAILED)).count()


def _tell_celery(run_id: int) -> bool:
    told = task_queue.tell(RUN_TASK, run_id)
    if not told:  # the row stays queued and the reaper tells again
        SweepRun.objects.filter(pk=run_id, state=State.QUEUED).update(enqueued=None)
    return told


def _withdraw(request_ids: Iterable[str | None]) -> None:
    for request_id in filter(None, request_ids):
        try:
            bench_queue.cancel(request_id)
        except Exception as error:  # the run is cancelled all the same; its answer will not be read
            pause.redis_away.begin()
            log.warning("bench_cancel_lost", request=request_id, error=str(error))


_BY = {
    Trigger.ADMIN: "the admin",
    Trigger.PAGE: "the dashboard",
    Trigger.SHELL: "a shell",
    Trigger.SCHEDULE: "its schedule",
}


def _log(who: User | None, run: SweepRun, act: str, detail: str = "", *, by: str = "a shell") -> None:
    audit.record(act, run, who=who, by=by, url=run.get_absolute_url(), detail=detail)
