"""What sweeps there are and when they start: presets, schedules, deletion."""

from __future__ import annotations

import json
from dataclasses import asdict

from django.db import DEFAULT_DB_ALIAS, transaction
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from dashboard.errors import UnknownSweep
from dashboard.models import Sweep
from dashboard.sweeps.crontab import parse_crontab
from dashboard.sweeps.presets import presets

SCHEDULED_TASK = "dashboard.start_scheduled"
NOTICES_TASK = "dashboard.repeat_notices"


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


def ensure_notices(*, using: str = DEFAULT_DB_ALIAS) -> None:
    """Repeats lost notices each minute, by a periodic task; one that an operator changed stays as it is."""
    every, _ = IntervalSchedule.objects.using(using).get_or_create(every=1, period=IntervalSchedule.MINUTES)
    PeriodicTask.objects.using(using).get_or_create(
        task=NOTICES_TASK,
        defaults={
            "name": "dashboard: repeat lost notices",
            "interval": every,
            "expire_seconds": 50,
        },
    )
