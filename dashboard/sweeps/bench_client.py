"""The way to the workers' bench inbox."""

from __future__ import annotations

from django.conf import settings

from engine.serving.client import Client


def connect() -> Client:
    """A client of the Redis that the settings name; close it (or use it as a context manager)."""
    return Client(settings.REDIS_URL)


def cancel(request_id: str) -> None:
    """Withdraws a benchmark point, or stops it if a worker has it. Raises QueueUnavailable."""
    with connect() as client:
        client.cancel(request_id)
