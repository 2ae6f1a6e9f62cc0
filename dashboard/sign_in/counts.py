"""Counts that every web process shares, in Redis; while that is away, each process counts for itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, cast

import redis
import structlog
from django.conf import settings
from django.core.cache import cache
from redis.exceptions import RedisError

from dashboard.circuit_breaker import CircuitBreaker
from engine.serving.connection import connect

log = structlog.get_logger(__name__)
T = TypeVar("T")

_circuit = CircuitBreaker(10.0)
"""After a failure Redis is not asked for a while: nobody shall wait for it at every step."""


def increase(key: str, expires_s: int) -> int:
    """One more. The count is gone `expires_s` seconds after its first."""

    def ask(shared: redis.Redis) -> int:
        pipe = shared.pipeline(transaction=True)
        pipe.set(_name(key), 0, ex=expires_s, nx=True)
        pipe.incr(_name(key))
        return int(pipe.execute()[1])

    found = _shared(ask)
    return _increase_here(key, expires_s) if found is None else found


def _increase_here(key: str, expires_s: int) -> int:
    cache.add(key, 0, expires_s)
    try:
        return int(cache.incr(key))
    except ValueError:  # it was there and expired in between
        cache.add(key, 0, expires_s)
        return int(cache.incr(key))


def value(key: str) -> int:
    """How many there have been."""
    found = _shared(lambda shared: int(cast("str | None", shared.get(_name(key))) or 0))
    return cache.get(key, 0) if found is None else found


def forget(key: str) -> None:
    _shared(lambda shared: shared.delete(_name(key)))
    cache.delete(key)


def _shared(ask: Callable[[redis.Redis], T]) -> T | None:
    """What Redis says; None while it is away."""
    if not _circuit.closed:
        return None
    try:
        return ask(_connection(settings.REDIS_URL))
    except (RedisError, OSError) as error:
        _circuit.trip()
        log.warning("each_process_counts_for_itself", error=str(error), quiet_s=_circuit.seconds)
        return None


@lru_cache(maxsize=1)
def _connection(url: str) -> redis.Redis:
    return connect(url)


def _name(key: str) -> str:
    return f"ml:count:{key}"
