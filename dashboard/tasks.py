"""What Celery runs for the dashboard: thin calls into `runner` and `services`.

The rows are the truth. A task that is delivered twice finds its run claimed and returns; one that is
lost is noticed by the reaper.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import structlog
from celery import shared_task, signals

from dashboard import bench_queue, runner, services
from dashboard.errors import SweepBusy
from dashboard.models import Sweep, Trigger

log = structlog.get_logger(__name__)
_stopping = threading.Event()


@shared_task(name=services.RUN_TASK)
def run_sweep(run_id: int) -> None:
    """Works on a sweep run until it ends, is cancelled, or this Celery worker shuts down."""
    with bench_queue.connect() as bench:
        runner.work_on(run_id, bench, stopping=_stopping)


@shared_task(name=services.SCHEDULED_TASK)
def start_scheduled(sweep_id: int) -> None:
    """What a schedule calls. A sweep whose last run has not ended is skipped, not queued up."""
    sweep = Sweep.objects.filter(pk=sweep_id).first()
    if sweep is None:
        log.warning("scheduled_sweep_is_gone", sweep=sweep_id)
        return
    try:
        services.start_sweep(sweep=sweep, trigger=Trigger.SCHEDULE)
    except SweepBusy as busy:
        log.warning("scheduled_sweep_skipped", sweep=sweep.name, reason=str(busy))


@shared_task(name=services.REAP_TASK)
def reap(at_start: bool = False) -> None:
    """Every minute: resumes runs that lost their process.

    When a worker starts, the broker may be a new one that knows of no queued run: it is told of all.
    """
    services.reap(remind_after=timedelta(0) if at_start else services.REMIND_AFTER)


@signals.worker_ready.connect
def _on_ready(**_: Any) -> None:
    _stopping.clear()
    reap.delay(at_start=True)


@signals.worker_shutting_down.connect
def _on_shutdown(**_: Any) -> None:
    """Lets runs go back to the queue within seconds (in a pool of threads; forked children are reaped)."""
    _stopping.set()
