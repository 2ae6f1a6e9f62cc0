"""The engine as the web process sees it: one client an event loop, and one watch over the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import redis.asyncio
import structlog
from django.conf import settings

from engine.serving.client import AsyncClient
from engine.serving.connection import connect_async
from engine.serving.errors import QueueUnavailable
from engine.serving.kept_connections import KeptConnections
from engine.serving.messages import Heartbeat

log = structlog.get_logger(__name__)
RunScript = Callable[..., Awaitable[Any]]
"""Takes the `keys` and `args` of a script; returns its reply."""
LOOK_EVERY_S = 1.0
"""How often the workers are looked at while a page is open; their heartbeats are as frequent."""

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connected] = WeakKeyDictionary()
_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, WorkerWatch] = WeakKeyDictionary()


class _Connected(NamedTuple):
    url: str
    engine: AsyncClient
    redis: redis.asyncio.Redis
    kept: KeptConnections
    scripts: dict[str, RunScript]


class Step(NamedTuple):
    """What a script is given."""

    keys: list[str]
    args: list[Any]


def engine_client() -> AsyncClient:
    """The client of the running event loop."""
    return _connections().engine


def engine_redis() -> redis.asyncio.Redis:
    """Plain Redis, for the few keys that only web processes use."""
    return _connections().redis


def engine_script(text: str) -> RunScript:
    """Runs a Lua script of web processes, registered once a connection: its digest takes time."""
    connected = _connections()
    found = connected.scripts.get(text)
    if found is None:
        script = connected.redis.register_script(text)
        found = connected.scripts[text] = partial(connected.kept.run, script)
    return found


def _connections() -> _Connected:
    loop, url = asyncio.get_running_loop(), settings.REDIS_URL
    found = _clients.get(loop)
    if found is None or found.url != url:
        redis = connect_async(url)
        found = _clients[loop] = _Connected(url, AsyncClient(url), redis, KeptConnections(redis), {})
    return found


def worker_watch() -> WorkerWatch:
    """The watch of the running event loop."""
    return _watches.setdefault(asyncio.get_running_loop(), WorkerWatch())


class WorkerWatch:
    """Looks at the workers on behalf of every open page, and only while there is one."""

    def __init__(self) -> None:
        self._listeners: set[Callable[[list[Heartbeat]], None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen: list[Heartbeat] = []
        self._seen_at = float("-inf")

    def add(self, listener: Callable[[list[Heartbeat]], None]) -> None:
        """Calls `listener` with the workers every LOOK_EVERY_S until it is removed."""
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def remove(self, listener: Callable[[list[Heartbeat]], None]) -> None:
        self._listeners.discard(listener)

    async def look(self) -> list[Heartbeat]:
        """The workers now. Raises QueueUnavailable."""
        self._seen_at = float("-inf")
        self._seen = await engine_client().workers()
        self._seen_at = monotonic()
        return self._seen

    async def recent(self, model: str = "", worker: str = "") -> list[Heartbeat]:
        """The workers as they were LOOK_EVERY_S ago at most, where each could take any request.

        As they are now where that matters: nobody is refused, or sent to a busy one of several models'
        workers, by what was true a moment ago. Raises QueueUnavailable.
        """
        known = self._seen if monotonic() - self._seen_at <= LOOK_EVERY_S else []
        models, names = {one.name for each in known for one in each.served}, {each.name for each in known}
        alike = len(known) == 1 or len(models) == 1
        settled = alike and model in ("", *models) and worker in ("", *names)
        return known if settled else await self.look()

    async def _run(self) -> None:
        while self._listeners:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                workers = await self.look()
            except QueueUnavailable as error:
                log.warning("workers_unknown", error=str(error))
                workers = []
            for listener in tuple(self._listeners):
                listener(workers)
