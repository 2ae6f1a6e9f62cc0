"""Who watches a generation, over all web processes; one that nobody watches any more is cancelled.

Each process says every BEAT_S which generations it is streaming, in one sorted set in Redis: generation to
the time, by Redis's own clock, when it was last watched. Every process looks there for those that have not
been for LEFT_RUN_S, as when a page left or the process that streamed them is gone, cancels them and keeps
what they wrote. A page that reloads, or another tab, is back within LEFT_RUN_S and resumes. So a process
cancels nothing before it has been there for as long itself: pages had nowhere to come back to.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from time import monotonic
from typing import cast
from weakref import WeakKeyDictionary

import structlog
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError
from django.db.models.functions import Now
from redis.exceptions import RedisError

from engine.errors import EngineError
from engine.serving import cancellation
from engine.serving.errors import explain_outage
from engine.serving.messages import Done, Failed
from playground import metrics, services
from playground.background import in_background
from playground.models import Generation
from playground.quota import charge
from playground.transcript import Transcript
from playground.workers import engine_client, engine_redis, engine_script

log = structlog.get_logger(__name__)
BEAT_S = 3.0
CLAIM_S = 60.0
"""What whoever finds an abandoned generation gets to end it, before another process tries."""
ROWS_EVERY_S = 30.0
"""How often rows are looked through for generations that Redis has forgotten."""
ROW_AGE_S = 60
WATCHED = "ml:watched"
_AT_ONCE = 50

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""
TOUCH = f"""{_NOW}
-- ARGV generations: each is watched now.
for _, id in ipairs(ARGV) do redis.call('ZADD', '{WATCHED}', now, id) end
return #ARGV
"""
_CLAIM = f"""{_NOW}
-- ARGV grace ms, claim ms, how many at most. Returns those that nobody has watched for so long; nobody else
-- is told of them until the claim is over.
local found = redis.call('ZRANGE', '{WATCHED}', '-inf', now - ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, id in ipairs(found) do redis.call('ZADD', '{WATCHED}', now + ARGV[2] - ARGV[1], id) end
return found
"""

_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Presence] = WeakKeyDictionary()


async def arrive(generation: str, viewer: str) -> None:
    """`viewer` (any name of its own) watches from now on.

    Raises QueueUnavailable if Redis does not answer.
    """
    hold(generation, viewer)
    with explain_outage():
        await _touch([generation])


def hold(generation: str, viewer: str) -> None:
    """As `arrive`, told to Redis with the next beat."""
    watch().here[viewer] = generation


def leave(viewer: str) -> None:
    """`viewer` stopped watching before the end: unless somebody comes within LEFT_RUN_S, it is cancelled."""
    watch().here.pop(viewer, None)


async def note_end(generation: str, viewer: str) -> None:
    """The generation has ended, and its end is known to whoever asked for it."""
    watch().here.pop(viewer, None)
    try:
        await engine_redis().zrem(WATCHED, generation)
    except (RedisError, OSError) as error:  # then it is found, and its end is there already
        log.info("end_not_noted", generation=generation, error=str(error))


async def stop() -> None:
    """Ends this event loop's part, and what it is ending, whatever that is doing."""
    found = _loops.pop(asyncio.get_running_loop(), None)
    for task in found.tasks if found is not None else ():
        await cancellation.end(task)


def watch() -> _Presence:
    """This process's part, begun if it has not: the application calls it as the process begins."""
    found = _loops.setdefault(asyncio.get_running_loop(), _Presence())
    found.begin()
    return found


class _Presence:
    def __init__(self) -> None:
        self.here: dict[str, str] = {}
        """Viewers of this process, and what each watches."""
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._rows_at = 0.0
        self._open_since = monotonic()
        """Since when pages could have come back to this process, and it could have said so."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [*([self._task] if self._task is not None else ()), *self._ending]

    def begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = in_background(self._run())

    async def _run(self) -> None:
        while True:
            cancellation.obey()
            await asyncio.sleep(BEAT_S)
            try:
                await _touch(sorted(set(self.here.values())))
                if monotonic() - self._rows_at >= ROWS_EVERY_S:
                    self._rows_at = monotonic()
                    await _try_to_note_rows()
                if monotonic() - self._open_since >= settings.LEFT_RUN_S:
                    await self._end_abandoned()
            except (RedisError, OSError, EngineError) as error:
                self._open_since = monotonic()
                log.warning("watching_failed", error=str(error))
            except Exception:
                log.exception("watching_failed")

    async def _end_abandoned(self) -> None:
        for generation in await _claim():
            ending = in_background(_end_abandoned(generation))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


async def _touch(generations: list[str]) -> None:
    if generations:
        await engine_script(TOUCH)(args=generations)


async def _claim() -> list[str]:
    args = [int(1000 * settings.LEFT_RUN_S), int(1000 * CLAIM_S), _AT_ONCE]
    return cast("list[str]", await engine_script(_CLAIM)(args=args))


async def _try_to_note_rows() -> None:
    """A database that is away keeps nobody from being watched: what Redis knows is ended all the same."""
    try:
        await _note_rows()
    except DatabaseError as error:
        log.warning("rows_not_looked_through", error=str(error))


async def _note_rows() -> None:
    """Rows that still run, and that nobody says to watch, were watched long ago."""
    rows = await sync_to_async(_running_rows)()
    if rows:
        await engine_redis().zadd(WATCHED, dict.fromkeys(rows, 0), nx=True)


def _running_rows() -> list[str]:
    old = Generation.objects.filter(
        state=Generation.State.RUNNING, created__lt=Now() - timedelta(seconds=ROW_AGE_S)
    )
    return list(old.order_by("created").values_list("id", flat=True)[:_AT_ONCE])


async def _end_abandoned(generation: str) -> None:
    try:
        log.info("generation_abandoned", generation=generation)
        await engine_client().cancel(generation)
        await _record_rest(generation)
        await engine_redis().zrem(WATCHED, generation)
    except (EngineError, RedisError, OSError, DatabaseError) as error:
        log.warning("abandoned_generation_not_cancelled", generation=generation, error=str(error))


async def _record_rest(generation: str) -> None:
    """Keeps what an abandoned generation had written, as its last viewer would have."""
    transcript = Transcript()
    async for _, frame in engine_client().frames(generation):
        transcript.add(frame)
        if isinstance(frame, Done | Failed) and await services.record_end(
            generation=generation, transcript=transcript, end=frame
        ):
            metrics.count_end("playground", frame)
    await charge(generation, transcript.tokens)
