"""The Celery application. `config/__init__.py` names it, so that every `shared_task` finds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("monolane")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_ready.connect
def say_ready(**_: Any) -> None:
    """Lets whoever started this process know that it works by now."""
    if settings.READY_FILE:
        Path(settings.READY_FILE).touch()
