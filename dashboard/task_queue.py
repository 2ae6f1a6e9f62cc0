"""The way to Celery's workers. What they are told of is a row as well, so what is lost here is told again."""

from __future__ import annotations

import structlog
from celery import current_app

from dashboard import pause

log = structlog.get_logger(__name__)


def tell(task: str, key: int) -> bool:
    """Whether the broker took it; if not, the log says why. The settings say how long it may take."""
    away = pause.redis_away
    if not away.over:  # many runs must not wait one by one
        return False
    try:
        current_app.send_task(task, args=[key])
    except Exception as error:  # a dead broker must not fail whoever has changed the row already
        away.begin()
        log.warning("celery_not_told", task=task, key=key, error=repr(error), quiet_s=away.seconds)
        return False
    return True
