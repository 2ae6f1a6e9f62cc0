from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.serving import worker as serving_worker
from engine.serving.client import Client
from engine.serving.worker import Worker
from tests.engine.serving.worker_threads import working
from tests.engine.serving.workers import Workers, running, write_chatterbox


@pytest.fixture(autouse=True)
def hasty_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in a thread looks this often whether it is to end: half a second for each test adds up."""
    monkeypatch.setattr(serving_worker, "_IDLE_WAIT_S", 0.05)


@pytest.fixture(scope="session")
def chatterbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatterbox(tmp_path_factory.mktemp("model") / "chatterbox")


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as found:
        yield found


@pytest.fixture
def workers(redis_url: str, tmp_path: Path) -> Iterator[Workers]:
    with running(redis_url, tmp_path) as found:
        yield found


@pytest.fixture
def worker(redis_url: str) -> Iterator[Worker]:
    with working(redis_url) as found:
        yield found
