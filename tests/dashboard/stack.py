"""The real parts that some tests run on: a database in a file, Redis, a Celery worker, an engine worker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.db import connections

from engine.serving.worker import Worker
from tests.prepared import prepared

ROOT = Path(__file__).resolve().parents[2]
POOL = ("--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle")


@dataclass(frozen=True)
class Stack:
    """Starts what the test wants of it."""

    redis_url: str
    database: Path

    @contextmanager
    def celery(self) -> Iterator[subprocess.Popen[bytes]]:
        """A Celery worker as `make run` starts it: a process of its own. Told to stop at the end."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "--app", "config", "worker", *POOL, "--loglevel", "WARNING"],
            cwd=ROOT,
            env={**os.environ, "REDIS_URL": self.redis_url, "DATABASE_URL": f"sqlite:///{self.database}"},
        )
        try:
            yield worker
        finally:
            worker.terminate()
            worker.wait(20)

    @contextmanager
    def engine(self) -> Iterator[Worker]:
        """A real engine worker with a tiny random model on NumPy."""
        worker = Worker(self.redis_url, "random:tiny-llama", "numpy", "test-worker")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop(at_once=True)
            thread.join(30)
            assert not thread.is_alive(), "the engine worker did not stop"


@contextmanager
def database_in(path: Path) -> Iterator[None]:
    """All connections made inside go to a migrated SQLite file: threads of one in memory lock each other."""
    prepared().copy_database(path)
    with _connected_to(path):
        yield


@contextmanager
def _connected_to(path: Path) -> Iterator[None]:
    outer, configured = connections["default"], connections.settings["default"]
    del connections["default"]
    connections.settings["default"] = {
        **configured,
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode=WAL;",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    }
    try:
        yield
        connections["default"].close()
    finally:
        connections.settings["default"] = configured
        connections["default"] = outer
