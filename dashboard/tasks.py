"""What Celery runs for the dashboard: thin calls into `runner` and `services`.

The rows are the truth. A task that is delivered twice finds its run claimed and returns; one that is
lost is noticed by the reaper.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from smtplib import SMTPException
from typing import Any

import structlog
from celery import shared_task, signals
from django.conf import settings

from dashboard.errors import SweepBusy
from dashboard.models import Regression, Sweep
from dashboard.regressions import notices
from dashboard.regressions import services as regressions
from dashboard.sweeps import bench_client, definitions, ownership, runner, services, transitions

log = structlog.get_logger(__name__)
_stopping = threading.Event()


@shared_task(name=transitions.RUN_TASK)
def run_sweep(run_id: int) -> None:
    """Works on a sweep run until it ends, is cancelled, or this Celery worker shuts down."""
    with bench_client.connect() as bench:
        runner.work_on(run_id, bench, stopping=_stopping)


@shared_task(name=definitions.SCHEDULED_TASK)
def start_scheduled(sweep_id: int) -> None:
    """What a schedule calls. A sweep whose last run has not ended is skipped, not queued up, and so is a
    time of the schedule that was served before."""
    sweep = Sweep.objects.filter(pk=sweep_id).first()
    if sweep is None:
        log.warning("scheduled_sweep_is_gone", sweep=sweep_id)
        return
    try:
        if services.start_scheduled(sweep=sweep) is None:
            log.info("schedule_already_served", sweep=sweep.name)
    except SweepBusy as busy:
        log.warning("scheduled_sweep_skipped", sweep=sweep.name, reason=str(busy))


@shared_task(name=definitions.REAP_TASK)
def reap(at_start: bool = False) -> None:
    """Every minute: resumes runs that lost their process.

    When a worker starts, the broker may be a new one that knows of no queued run: it is told of all.
    """
    regressions.ask_again()
    ownership.reap(remind_after=timedelta(0) if at_start else ownership.REMIND_AFTER)


@shared_task(
    name=regressions.EMAIL_TASK,
    autoretry_for=(OSError, SMTPException),
    retry_backoff=10,
    retry_jitter=True,
    max_retries=5,
)
def email_regression(key: int) -> None:
    """Delivers one e-mail, once; a mail server that is away is tried again after 10 s, 20 s, …"""
    regression = Regression.objects.select_related("configuration").filter(pk=key).first()
    if regression is not None and getattr(regression, regression.told[0]) is None:
        notices.email(regression)


@shared_task(
    name=regressions.WEBHOOK_TASK,
    autoretry_for=(notices.NotDelivered,),
    retry_backoff=10,
    retry_jitter=True,
    max_retries=5,
)
def call_webhook(key: int) -> None:
    """Delivers one call, at least once: `Monolane-Delivery` lets a receiver tell a second one."""
    regression = Regression.objects.select_related("configuration").filter(pk=key).first()
    asked = regression is not None and getattr(regression, regression.told[1]) is None
    if regression is not None and asked and settings.REGRESSION_WEBHOOK is not None:
        notices.call(regression, settings.REGRESSION_WEBHOOK)


@signals.worker_ready.connect
def _on_ready(**_: Any) -> None:
    _stopping.clear()
    reap.delay(at_start=True)


@signals.worker_shutting_down.connect
def _on_shutdown(**_: Any) -> None:
    """Lets runs go back to the queue within seconds (in a pool of threads; forked children are reaped)."""
    _stopping.set()
