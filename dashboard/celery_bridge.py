"""The way to Celery's workers. What they are told of is a row as well, so what is lost here is told again."""

from __future__ import annotations

import structlog
from celery import current_app

from dashboard import circuit_breaker

log = structlog.get_logger(__name__)
_ONCE_MORE = {"max_retries": 1, "interval_start": 0.5, "interval_step": 0, "interval_max": 0.5}
"""Rides out a restart of the broker. Celery's own three retries would be three more silences of one that
hangs: beat can wait for them, whoever presses a button should not."""


def tell(task: str, key: int) -> bool:
    """Whether the broker took it; if not, the log says why. Of a silence there are three at most."""
    away = circuit_breaker.redis_circuit
    if not away.closed:  # many runs must not wait one by one
        log.info("celery_not_asked", task=task, key=key, pause_s=away.seconds)
        return False
    try:
        current_app.send_task(task, args=[key], retry_policy=_ONCE_MORE)
    except Exception as error:  # a dead broker must not fail whoever has changed the row already
        away.trip()
        log.warning("celery_not_told", task=task, key=key, error=repr(error), quiet_s=away.seconds)
        return False
    return True
