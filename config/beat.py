"""The schedule of django-celery-beat, by a scheduler that shows that it is not stuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django_celery_beat.schedulers import DatabaseScheduler


class WatchedScheduler(DatabaseScheduler):  # type: ignore[misc]  # no types
    """Touches READY_FILE at every tick, which is due every 5 s or sooner."""

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        pause = super().tick(*args, **kwargs)
        if settings.READY_FILE:
            Path(settings.READY_FILE).touch()
        return pause
