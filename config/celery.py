"""The Celery application. `config/__init__.py` names it, so that every `shared_task` finds it."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("monolane")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
