"""The probe of the process, which must be answered whatever else is busy."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from config import asgi
from config.alive import ALIVE


async def ask(method: str) -> tuple[int, bytes]:
    scope: dict[str, Any] = {"type": "http", "method": method, "path": ALIVE, "headers": []}
    application = ApplicationCommunicator(asgi.application, scope)
    start = await application.receive_output(5)
    body = await application.receive_output(5)
    return start["status"], body["body"]


async def test_the_process_answers_without_threads_redis_or_a_database(settings, monkeypatch):
    """Django's test would refuse a query; no thread can begin."""
    settings.REDIS_URL = "redis://127.0.0.1:1"
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread began"))
    assert await ask("GET") == (200, b'{"status": "ok"}')


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 405)])
async def test_other_methods_get_no_content(method, status):
    assert await ask(method) == (status, b"")
