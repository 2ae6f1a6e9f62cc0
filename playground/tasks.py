"""What Celery runs for the playground."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.core.management import call_command

from playground import services

log = structlog.get_logger(__name__)


@shared_task(name=services.FORGET_TASK)
def forget() -> None:
    """Every hour: drops old generations, and expired sessions, of which every visitor leaves one."""
    deleted = services.forget_old()
    call_command("clearsessions")
    if deleted:
        log.info("generations_forgotten", generations=deleted)
