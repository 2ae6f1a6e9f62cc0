"""Fixtures of the dashboard's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from config.celery import app as celery_app
from dashboard import circuit_breaker
from dashboard.circuit_breaker import CircuitBreaker
from dashboard.live import notifications
from dashboard.sweeps import services
from tests.dashboard.stack import Stack, database_in


@pytest.fixture(autouse=True)
def plain_static(settings: Any, tmp_path: Path) -> None:
    """Static files by their plain names: nothing has been collected."""
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}


@pytest.fixture(autouse=True)
def redis_is_back(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Each test begins without a pause; called, this ends one that a failure has begun."""

    def end_pause() -> None:
        monkeypatch.setattr(circuit_breaker, "redis_circuit", CircuitBreaker(10.0))

    end_pause()
    return end_pause


@pytest.fixture(autouse=True)
def withdrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The requests that were withdrawn from the bench inbox, in place of Redis."""
    requests: list[str | None] = []
    if "stack" not in request.fixturenames:
        monkeypatch.setattr(services, "_withdraw", requests.extend)
    return requests


@pytest.fixture(autouse=True)
def hinted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The hints that pages were sent, in place of the channel layer."""
    sent: list[dict[str, object]] = []
    if "stack" not in request.fixturenames:
        monkeypatch.setattr(notifications, "_send", lambda group, hint: sent.append({"group": group, **hint}))
    return sent


@pytest.fixture
def operator(db: None) -> User:
    """May look at sweeps in the admin, and run them; may not change them."""
    user = User.objects.create_user("operator", password="x", is_staff=True)
    names = ("can_run_sweep", "view_sweep", "view_sweeprun", "view_measurement")
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return user


@pytest.fixture
def viewer(db: None) -> User:
    """May look at sweeps in the admin and nothing else."""
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_sweep", "view_sweeprun")))
    return user


@pytest.fixture
def as_operator(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture
def as_viewer(viewer: User) -> Client:
    client = Client()
    client.force_login(viewer)
    return client


@pytest.fixture
def as_admin(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss", password="x"))
    return client


@pytest.fixture
def stack(
    settings: Any,
    redis_url: str,
    django_db_setup: None,
    django_db_blocker: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stack]:
    """A Redis of its own for inboxes, broker and hints, and a database that threads may share."""
    settings.REDIS_URL = redis_url
    layer = {**settings.CHANNEL_LAYERS["default"], "CONFIG": {"hosts": [{"address": redis_url}]}}
    settings.CHANNEL_LAYERS = {"default": layer}
    monkeypatch.setattr(celery_app.conf, "broker_url", redis_url)
    with django_db_blocker.unblock(), database_in(tmp_path / "db.sqlite3"):
        yield Stack(redis_url, tmp_path / "db.sqlite3")
