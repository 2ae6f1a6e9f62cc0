"""Beat shows that it is not stuck."""

from __future__ import annotations

import json
import logging

import pytest
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from config.access_log import AccessLog
from config.beat import WatchedScheduler
from config.celery import app

pytestmark = pytest.mark.django_db


def test_every_tick_leaves_a_trace(settings, tmp_path):
    settings.READY_FILE = str(tmp_path / "ready")
    PeriodicTask.objects.update(
        last_run_at=timezone.now()
    )  # what is due would be sent, and no broker is here
    scheduler = WatchedScheduler(app=app, lazy=True)
    assert not (tmp_path / "ready").exists()
    scheduler.tick()
    first = (tmp_path / "ready").stat().st_mtime_ns
    scheduler.tick()
    assert (tmp_path / "ready").stat().st_mtime_ns > first


def test_what_was_served_is_an_event_like_any_other(caplog):
    say = AccessLog(None)
    details = {
        "path": "/v1/models?" + "x" * 7000, "status": 404, "method": "GET", "client": "192.0.2.1:5",
        "time_taken": 0.0125, "size": 20,
    }  # fmt: skip
    with caplog.at_level(logging.INFO, "access"):
        say("http", "complete", details)
        say("http", "complete", {**details, "path": "/healthz"})
    [record] = caplog.records
    event = record.msg if isinstance(record.msg, dict) else json.loads(record.getMessage())
    assert (event["event"], event["status"], event["ms"]) == ("http_complete", 404, 12.5)
    assert len(event["path"]) == 300
