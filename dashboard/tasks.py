"""What Celery runs for the dashboard: thin calls into services, and the collector of sweeps.

The rows are the truth: a task that is delivered twice finds its work done and returns.
"""

from __future__ import annotations

import threading
from smtplib import SMTPException
from typing import Any

import structlog
from celery import shared_task, signals
from django.conf import settings

from dashboard.errors import SweepBusy
from dashboard.models import Regression, Sweep
from dashboard.regressions import notices
from dashboard.regressions import services as regressions
from dashboard.sweeps import collector, definitions, services

log = structlog.get_logger(__name__)
_stopping = threading.Event()


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


@shared_task(name=definitions.NOTICES_TASK)
def repeat_notices() -> None:
    """Every minute, and when a worker starts: tells Celery again of the notices that were not delivered."""
    regressions.ask_again()


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
    """Each Celery worker looks after the sweeps, in a thread beside its tasks."""
    _stopping.clear()
    threading.Thread(target=collector.run, args=(_stopping,), name="sweeps", daemon=True).start()
    repeat_notices.delay()


@signals.worker_shutting_down.connect
def _on_shutdown(**_: Any) -> None:
    _stopping.set()
