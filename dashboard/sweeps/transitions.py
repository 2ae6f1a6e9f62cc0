"""Changes of a sweep run's state, and what follows from each: pages are notified, devices freed.

A change is a conditional UPDATE: its WHERE names the state that it expects.
"""

from __future__ import annotations

from typing import Any

from django.db import models, transaction
from django.db.models import F
from django.utils import timezone

from dashboard.live import notifications
from dashboard.models import ACTIVE, Point, State, SweepRun
from dashboard.sweeps import devices


def change(rows: models.QuerySet[SweepRun], **values: Any) -> int:
    """The conditional UPDATE, counted by `version` so that pages can tell old news from new."""
    return rows.update(version=F("version") + 1, **values)


def count_tried(run_id: int) -> int:
    return Point.objects.filter(run_id=run_id, current=True, state__in=(State.FINISHED, State.FAILED)).count()


def announce(*, run_id: int) -> None:
    """Tells open pages that the run changed, once the transaction is through."""

    def send() -> None:
        version = SweepRun.objects.filter(pk=run_id).values_list("version", flat=True).first()
        if version is not None:
            notifications.sweep_changed(run_id, version)

    transaction.on_commit(send)


def free_devices(run_id: int) -> None:
    """Gives back a run's devices; the pages of the runs that wait for them are told."""
    devices.free(run_id)
    for waiting in SweepRun.objects.filter(state=State.QUEUED).exclude(pk=run_id):
        change(SweepRun.objects.filter(pk=waiting.pk))
        announce(run_id=waiting.pk)


def give_up(mine: models.QuerySet[SweepRun], run_id: int, message: str) -> bool:
    now = timezone.now()
    if not change(mine, state=State.FAILED, error=message, ended=now, label=""):
        return False
    Point.objects.filter(run_id=run_id, state__in=ACTIVE).update(
        state=State.FAILED, error_code="run_failed", error=message, ended=now
    )
    SweepRun.objects.filter(pk=run_id).update(done=count_tried(run_id))
    free_devices(run_id)
    return True
