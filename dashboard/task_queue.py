"""The way to Celery's workers. What they are told of is a row as well, so what is lost here is told again."""

from __future__ import annotations

import structlog
from celery import current_app

from dashboard.pause import Pause

log = structlog.get_logger(__name__)

_pause = Pause(10.0)
"""After a failure nobody is told for a while: many runs must not wait for a dead broker one by one."""


def tell(task: str, key: int) -> bool:
    """Whether the broker took it; if not, the log says why. The settings say how long it may take."""
    if not _pause.over:
        return False
    try:
        current_app.send_task(task, args=[key])
    except Exception as error:  # a dead broker must not fail whoever has changed the row already
        _pause.begin()
        log.warning("celery_not_told", task=task, key=key, error=repr(error), quiet_s=_pause.seconds)
        return False
    return True
