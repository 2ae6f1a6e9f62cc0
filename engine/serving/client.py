"""Asking workers for things: submit, follow, cancel, and see who is there.

`Client` blocks (Celery tasks, tools, tests); `AsyncClient` awaits (consumers, views) and belongs to one
event loop. Both raise QueueUnavailable when Redis does not answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from redis.exceptions import RedisError

from engine.errors import EngineError
from engine.serving import scripts
from engine.serving.connection import BLOCK_S, connect, connect_async
from engine.serving.estimate import seconds_to_start
from engine.serving.messages import (
    BENCH,
    EXPIRES_S,
    INBOX_LIMIT,
    INTERACTIVE,
    WAITING,
    WORKERS,
    Done,
    Failed,
    Heartbeat,
    Request,
    Timings,
    cancel_key,
    encode_frame,
    frame_number,
    out_key,
    owner_key,
    service_key,
    worker_inbox,
    worker_key,
)
from engine.serving.reading import FROM_START, StreamFrame, TokenCounter, parse_entries
from engine.serving.shared_reader import Feed, SharedReader

log = logging.getLogger(__name__)
OUTAGE_S = 30.0
"""How long a reader of frames waits for a Redis that went away before it gives up."""
RECOVERY_S = 10.0
"""How long Redis may know nothing of a request that it knew before: its worker publishes it again."""
GONE_S = 10.0
"""How long the one worker that may take a request can be without a sign of life before the request ends."""


class QueueFull(EngineError):
    """An inbox holds as many requests as it may."""


class TurnFull(EngineError):
    """As many requests of one submitter wait as may."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose request it is, so that nobody's many requests keep everybody else waiting.

    At most `width` of the requests submitted under `name` are in the inbox or a worker's hands at once; up
    to `waiting` more are held outside and enter, in order, as those end.
    """

    name: str
    width: int = 1
    waiting: int = 8


class QueueUnavailable(EngineError):
    """Redis cannot be reached."""


class Client:
    """Talks to the workers from ordinary code. Threads may share one."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect(redis_url)
        self._submit = self._redis.register_script(scripts.SUBMIT)
        self._cancel = self._redis.register_script(scripts.CANCEL)
        self._lose_script = self._redis.register_script(scripts.LOSE)

    def close(self) -> None:
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def submit(self, request: Request, limit: int = INBOX_LIMIT, turn: Turn | None = None) -> int:
        """Puts a generation or a benchmark point in its inbox; returns its place in the queue (1 is next).

        It counts as created now, unless it says when.
        Doing it again with the same id changes nothing (0 if a worker has it by now). Raises QueueFull
        if `limit` requests are in the inbox already, or held outside for a turn where this one would be;
        TurnFull if `turn` has no room.
        """
        with _explained():
            reply = self._submit(keys=[request.inbox], args=_submit_args(request, limit, turn))
        return _place(reply, request, limit)

    def frames(
        self, request_id: str, *, after: str = FROM_START, after_tokens: int = 0
    ) -> Iterator[StreamFrame]:
        """The frames of a request as they come, ending with its final one.

        `after` is the stream id of a frame to go on from; token frames that lie within the first
        `after_tokens` tokens are left out. A request that nobody knows (any more) ends in a Failed
        frame. Raises QueueUnavailable if Redis stays away for OUTAGE_S.
        """
        watch = _Watch(request_id, after, after_tokens)
        while not watch.over:
            try:
                found = watch.take(self.read(request_id, watch.after, block_s=watch.block_s))
                yield from found
                if not found and not watch.over:
                    yield from watch.idle(self._standing(request_id))
                    watch.gone(self._lose(request_id, ends=watch.gone_for(GONE_S)))
            except QueueUnavailable:
                watch.outage()
                time.sleep(0.2)

    def read(
        self, request_id: str, after: str = FROM_START, *, count: int = 1000, block_s: float = 0.0
    ) -> list[StreamFrame]:
        """At most `count` frames after the stream id `after`; waits up to `block_s`, at most BLOCK_S."""
        block = _block_ms(block_s)
        with _explained():
            reply = self._redis.xread({out_key(request_id): after}, count=count, block=block)
        return parse_entries(reply)

    def cancel(self, request_id: str) -> bool:
        """Ends a request: True if at once, because it had not begun; else its worker stops within a frame."""
        with _explained():
            return bool(self._cancel(keys=_cancel_keys(request_id), args=_cancel_args(request_id)))

    def position(self, request_id: str) -> int | None:
        """Place in the queue, 1 is next; None once a worker has it (or if nobody knows it)."""
        with _explained():
            rank = cast("int | None", self._redis.zrank(WAITING, request_id))
        return None if rank is None else rank + 1

    def eta(self, request_id: str) -> float | None:
        """Seconds until the request starts, judging by recent ones; None if unknown, 0 once it has."""
        with _explained():
            rank = cast("int | None", self._redis.zrank(WAITING, request_id))
            times = cast("list[str]", self._redis.lrange(service_key(INTERACTIVE), 0, -1))
        return _eta(rank, times, self.workers())

    def workers(self) -> list[Heartbeat]:
        """The live workers, by name."""
        with _explained():
            names = sorted(cast("set[str]", self._redis.smembers(WORKERS)))
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hgetall(worker_key(name))
            return _live(pipe.execute())

    def depth(self) -> dict[str, int]:
        """How many requests each inbox holds, the one in a worker's hands included."""
        with _explained():
            names = cast("set[str]", self._redis.smembers(WORKERS))
            pipe = self._redis.pipeline(transaction=False)
            pipe.xlen(BENCH)
            for inbox in (INTERACTIVE, *map(worker_inbox, names)):
                pipe.xlen(inbox)
            bench, *interactive = pipe.execute()
        return {"interactive": sum(interactive), "bench": bench}

    def _lose(self, request_id: str, *, ends: bool) -> bool:
        """Whether only one worker may take the request and that one is gone; `ends` it if so."""
        with _explained():
            return bool(self._lose_script(keys=_lose_keys(request_id), args=_lose_args(request_id, ends)))

    def _standing(self, request_id: str) -> tuple[bool, StreamFrame | None]:
        """Whether Redis knows the request, and the newest frame of its output."""
        with _explained():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zscore(WAITING, request_id)
            pipe.exists(owner_key(request_id), out_key(request_id))
            pipe.xrevrange(out_key(request_id), count=1)
            return _parse_standing(pipe.execute())


class AsyncClient:
    """The same for one event loop. However many requests are followed, one read waits for all of them."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect_async(redis_url)
        self._reader = SharedReader(self._redis, unavailable)
        self._submit = self._redis.register_script(scripts.SUBMIT)
        self._cancel = self._redis.register_script(scripts.CANCEL)
        self._lose_script = self._redis.register_script(scripts.LOSE)

    async def close(self) -> None:
        await self._reader.close()
        await self._redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def submit(self, request: Request, limit: int = INBOX_LIMIT, turn: Turn | None = None) -> int:
        """As Client.submit."""
        with _explained():
            reply = await self._submit(keys=[request.inbox], args=_submit_args(request, limit, turn))
        return _place(reply, request, limit)

    async def frames(
        self, request_id: str, *, after: str = FROM_START, after_tokens: int = 0
    ) -> AsyncGenerator[StreamFrame]:
        """As Client.frames."""
        watch = _Watch(request_id, after, after_tokens)
        feed: Feed | None = None
        try:
            while not watch.over:
                try:
                    if watch.block_s and feed is None:
                        feed = self._reader.follow(out_key(request_id), watch.after)
                    for frame in await self._next(watch, feed, request_id):
                        yield frame
                except QueueUnavailable:
                    watch.outage()
                    await asyncio.sleep(0.2)
        finally:
            if feed is not None:
                feed.close()

    @property
    def following(self) -> int:
        """How many requests' outputs are waited for now."""
        return self._reader.followed

    async def _next(self, watch: _Watch, feed: Feed | None, request_id: str) -> list[StreamFrame]:
        found = await (self.read(request_id, watch.after) if feed is None else feed.take(watch.block_s))
        fresh = watch.take(found)
        if not found and not watch.over:
            fresh = watch.idle(await self._standing(request_id))
            watch.gone(await self._lose(request_id, ends=watch.gone_for(GONE_S)))
        return fresh

    async def read(
        self, request_id: str, after: str = FROM_START, *, count: int = 1000, block_s: float = 0.0
    ) -> list[StreamFrame]:
        """As Client.read."""
        block = _block_ms(block_s)
        with _explained():
            return parse_entries(
                await self._redis.xread({out_key(request_id): after}, count=count, block=block)
            )

    async def cancel(self, request_id: str) -> bool:
        """As Client.cancel."""
        with _explained():
            return bool(await self._cancel(keys=_cancel_keys(request_id), args=_cancel_args(request_id)))

    async def position(self, request_id: str) -> int | None:
        """As Client.position."""
        with _explained():
            rank = await cast("Awaitable[int | None]", self._redis.zrank(WAITING, request_id))
        return None if rank is None else rank + 1

    async def eta(self, request_id: str) -> float | None:
        """As Client.eta."""
        with _explained():
            rank = await cast("Awaitable[int | None]", self._redis.zrank(WAITING, request_id))
            times = await cast("Awaitable[list[str]]", self._redis.lrange(service_key(INTERACTIVE), 0, -1))
        return _eta(rank, times, await self.workers())

    async def workers(self) -> list[Heartbeat]:
        """As Client.workers."""
        with _explained():
            names = sorted(await cast("Awaitable[set[str]]", self._redis.smembers(WORKERS)))
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hgetall(worker_key(name))
            return _live(await pipe.execute())

    async def environment(self, worker: str) -> dict[str, Any]:
        """What `engine.environment.capture` said when a worker opened its model; {} once it is gone."""
        with _explained():
            found = await cast("Awaitable[str | None]", self._redis.hget(worker_key(worker), "environment"))
        return cast("dict[str, Any]", json.loads(found or "{}"))

    async def depth(self) -> dict[str, int]:
        """As Client.depth."""
        with _explained():
            names = await cast("Awaitable[set[str]]", self._redis.smembers(WORKERS))
            pipe = self._redis.pipeline(transaction=False)
            pipe.xlen(BENCH)
            for inbox in (INTERACTIVE, *map(worker_inbox, names)):
                pipe.xlen(inbox)
            bench, *interactive = await pipe.execute()
        return {"interactive": sum(interactive), "bench": bench}

    async def _lose(self, request_id: str, *, ends: bool) -> bool:
        keys, args = _lose_keys(request_id), _lose_args(request_id, ends)
        with _explained():
            return bool(await self._lose_script(keys=keys, args=args))

    async def _standing(self, request_id: str) -> tuple[bool, StreamFrame | None]:
        with _explained():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zscore(WAITING, request_id)
            pipe.exists(owner_key(request_id), out_key(request_id))
            pipe.xrevrange(out_key(request_id), count=1)
            return _parse_standing(await pipe.execute())


class _Watch:
    """What a reader of frames knows: how far it is, and whether anything can still come."""

    def __init__(self, request_id: str, after: str, after_tokens: int) -> None:
        self.after = after
        self.over = False
        self.block_s = 0.0
        """The first look does not wait, so that an unknown request is refused at once."""
        self._id = request_id
        self._counter = TokenCounter(after_tokens)
        self._known = False
        self._lost_at: float | None = None
        self._away_at: float | None = None
        self._gone_at: float | None = None

    def take(self, frames: list[StreamFrame]) -> list[StreamFrame]:
        """The new frames among `frames`. None at all is no sign that Redis answers: `idle` is."""
        if frames:
            self._away_at = self._lost_at = None
            self._known = True
            self.after = frames[-1].id
            self.over = frames[-1].final
        return self._counter.fresh(frames)

    def idle(self, standing: tuple[bool, StreamFrame | None]) -> list[StreamFrame]:
        """Nothing came: go on waiting (no frame), or end, with a Failed frame if the request is lost."""
        known, newest = standing
        self._away_at = None
        self.block_s = BLOCK_S
        now = time.monotonic()
        if known:
            self._known, self._lost_at = True, None
            seen = newest is not None and frame_number(newest.id) <= frame_number(self.after)
            self.over = seen and newest is not None and newest.final
            return []
        if self._known:
            self._lost_at = self._lost_at or now
            if now - self._lost_at < RECOVERY_S:
                return []
        self.over = True
        return [StreamFrame(self.after, _lost(self._id, self._known))]

    def gone(self, gone: bool) -> None:
        """Whether the one worker that may take the request shows no sign of life now."""
        self._gone_at = (self._gone_at or time.monotonic()) if gone else None

    def gone_for(self, seconds: float) -> bool:
        return self._gone_at is not None and time.monotonic() - self._gone_at >= seconds

    def outage(self) -> None:
        """Redis did not answer. Raises QueueUnavailable (again) once that has lasted OUTAGE_S."""
        now = time.monotonic()
        self._away_at = self._away_at or now
        if now - self._away_at >= OUTAGE_S:
            raise QueueUnavailable(f"Redis has not answered for {OUTAGE_S:.0f} s; check that it runs")


def _lost(request_id: str, was_known: bool) -> Failed:
    if was_known:
        return Failed("worker_lost", f"Redis lost request {request_id} before it ended; send it again", True)
    return Failed(
        "expired",
        f"nothing is known of request {request_id}; output is kept for {EXPIRES_S // 60} minutes after its"
        " end: send the request again",
        True,
    )


def unavailable(error: Exception) -> QueueUnavailable:
    """What readers may know of a failure. The log has the rest: addresses are nobody else's business."""
    log.warning("Redis does not answer: %s", error)
    return QueueUnavailable("Redis does not answer; check REDIS_URL and that it runs")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise unavailable(error) from error


def _submit_args(request: Request, limit: int, turn: Turn | None) -> list[str | int | float]:
    offset = scripts.BENCH_OFFSET if request.inbox == BENCH else 0
    stamped = request if request.created_ms else replace(request, created_ms=int(time.time() * 1000))
    whose: list[str | int] = ["", 0, 0] if turn is None else [turn.name, turn.width, turn.waiting]
    return [request.id, stamped.to_entry()["json"], limit, offset, *whose]


def _place(reply: tuple[str, int], request: Request, limit: int) -> int:
    verdict, number = reply
    if verdict == "full":
        raise QueueFull(
            f"the {request.kind} queue holds {number} requests and takes at most {limit};"
            " try again in a moment"
        )
    if verdict == "crowded":
        raise TurnFull(f"{number} of your generations are under way or wait already; let one end first")
    return number


def _cancel_keys(request_id: str) -> list[str]:
    return [out_key(request_id), cancel_key(request_id)]


def _cancel_args(request_id: str) -> list[str]:
    never_began = Done("cancelled", "", Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0))
    return [request_id, encode_frame(never_began)["json"]]


def _lose_keys(request_id: str) -> list[str]:
    return [out_key(request_id), owner_key(request_id)]


def _lose_args(request_id: str, ends: bool) -> list[str]:
    message = f"the worker that this request named has been gone for {GONE_S:.0f} s; choose another"
    return [request_id, encode_frame(Failed("worker_lost", message, True))["json"] if ends else ""]


def _block_ms(seconds: float) -> int | None:
    """The BLOCK argument; None (not 0, which means for ever) where the read should not wait."""
    return max(1, int(min(seconds, BLOCK_S) * 1000)) if seconds > 0 else None


def _eta(rank: int | None, service_ms: list[str], workers: list[Heartbeat]) -> float | None:
    if rank is None:
        return 0.0
    return seconds_to_start(rank + 1, [float(ms) for ms in service_ms], workers, int(time.time() * 1000))


def _live(hashes: list[Mapping[str, str]]) -> list[Heartbeat]:
    return [Heartbeat.from_hash(entry) for entry in hashes if entry]


def _parse_standing(replies: list[Any]) -> tuple[bool, StreamFrame | None]:
    score, existing, newest = replies
    frames = parse_entries({"": newest})
    return score is not None or existing > 0, frames[0] if frames else None
