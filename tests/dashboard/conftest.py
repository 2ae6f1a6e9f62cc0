"""Fixtures of the dashboard's tests."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from dashboard import hints, services


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs of which Celery was told, in place of a broker; tests with a real worker undo it."""
    runs: list[int] = []
    monkeypatch.setattr(services, "_tell_celery", runs.append)
    return runs


@pytest.fixture(autouse=True)
def withdrawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that were withdrawn from the bench inbox, in place of Redis."""
    requests: list[str] = []
    monkeypatch.setattr(services.bench_queue, "cancel", requests.append)
    return requests


@pytest.fixture(autouse=True)
def hinted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The hints that pages were sent, in place of the channel layer."""
    sent: list[dict[str, object]] = []
    monkeypatch.setattr(hints, "_send", lambda group, hint: sent.append({"group": group, **hint}))
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
