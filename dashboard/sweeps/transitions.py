"""Changes of a sweep run's state, and what follows from each: pages are notified, devices freed, Celery told.

A change is a conditional UPDATE: its WHERE names the state (and the owner) that it expects.
"""

from __future__ import annotations

from typing import Any

from django.db import models, transaction
from django.db.models import F
from django.utils import timezone

from dashboard import celery_bridge
from dashboard.live import notifications
from dashboard.models import ACTIVE, Point, State, SweepRun
from dashboard.sweeps import devices

RUN_TASK = "dashboard.run_sweep"


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


def enqueue(run_id: int) -> bool:
    told = celery_bridge.tell(RUN_TASK, run_id)
    if not told:  # the row stays queued and the reaper tells again
        SweepRun.objects.filter(pk=run_id, state=State.QUEUED).update(enqueued=None)
    return told


def enqueue_next() -> None:
    """Tells Celery of the runs that nothing stands before any more. More than once does no harm."""

    def tell() -> None:
        for key in devices.startable():
            enqueue(key)

    transaction.on_commit(tell)


def free_devices(run_id: int) -> None:
    """Gives back a run's devices; whoever waits for them is told, and so are the pages of the queue."""
    devices.free(run_id)
    enqueue_next()
    for waiting in SweepRun.objects.filter(state=State.QUEUED).exclude(pk=run_id):
        change(SweepRun.objects.filter(pk=waiting.pk))
        announce(run_id=waiting.pk)


def give_up(mine: models.QuerySet[SweepRun], run_id: int, message: str) -> bool:
    now = timezone.now()
    if not change(mine, state=State.FAILED, error=message, ended=now, owner="", label=""):
        return False
    Point.objects.filter(run_id=run_id, state__in=ACTIVE).update(
        state=State.FAILED, error_code="run_failed", error=message, ended=now
    )
    SweepRun.objects.filter(pk=run_id).update(done=count_tried(run_id))
    free_devices(run_id)
    return True
