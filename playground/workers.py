"""The engine as the web process sees it: one client an event loop, and one watch over the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import redis.asyncio
import structlog
from django.conf import settings

from engine.serving.client import AsyncClient
from engine.serving.connection import connect_async
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import Heartbeat

log = structlog.get_logger(__name__)
LOOK_EVERY_S = 1.0
"""How often the workers are looked at while a page is open; their heartbeats are as frequent."""

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connected] = WeakKeyDictionary()
_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, WorkerWatch] = WeakKeyDictionary()


class _Connected(NamedTuple):
    url: str
    engine: AsyncClient
    redis: redis.asyncio.Redis


def engine_client() -> AsyncClient:
    """The client of the running event loop."""
    return _connections().engine


def engine_redis() -> redis.asyncio.Redis:
    """Plain Redis, for the few keys that only web processes use."""
    return _connections().redis


def _connections() -> _Connected:
    loop, url = asyncio.get_running_loop(), settings.REDIS_URL
    found = _clients.get(loop)
    if found is None or found.url != url:
        found = _clients[loop] = _Connected(url, AsyncClient(url), connect_async(url))
    return found


def worker_watch() -> WorkerWatch:
    """The watch of the running event loop."""
    return _watches.setdefault(asyncio.get_running_loop(), WorkerWatch())


class WorkerWatch:
    """Looks at the workers on behalf of every open page, and only while there is one."""

    def __init__(self) -> None:
        self._listeners: set[Callable[[list[Heartbeat]], None]] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, listener: Callable[[list[Heartbeat]], None]) -> None:
        """Calls `listener` with the workers every LOOK_EVERY_S until it is removed."""
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def remove(self, listener: Callable[[list[Heartbeat]], None]) -> None:
        self._listeners.discard(listener)

    async def _look(self) -> None:
        while self._listeners:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                workers = await engine_client().workers()
            except QueueUnavailable as error:
                log.warning("workers_unknown", error=str(error))
                workers = []
            for listener in tuple(self._listeners):
                listener(workers)
