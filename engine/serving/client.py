"""Asking workers for things: submit, follow, cancel, and see who is there.

`Client` blocks (Celery tasks, tools, tests); `AsyncClient` awaits (consumers, views) and belongs to one
event loop. Both raise QueueUnavailable when Redis does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

from engine.serving import cancellation, queries, scripts
from engine.serving.connection import BLOCK_S, connect, connect_async
from engine.serving.errors import QueueFull, QueueUnavailable, TooManyWaiting, explained
from engine.serving.fanout import Feed, StreamFanout
from engine.serving.follower import StreamFollower, deserted
from engine.serving.messages import (
    BENCH,
    INBOX_LIMIT,
    Done,
    Heartbeat,
    Request,
    cancel_key,
    encode_frame,
    out_key,
    owner_key,
)
from engine.serving.queries import Command, Query
from engine.serving.reading import FROM_START, StreamFrame, parse_entries
from engine.timings import NEVER_BEGAN

T = TypeVar("T")
_OUTAGE_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class FairShare:
    """Whose request it is, so that nobody's many requests keep everybody else waiting.

    At most `width` of the requests submitted under `name` are in the inbox or a worker's hands at once; up
    to `waiting` more are held outside and enter, in order, as those end. A share may lie inside another one,
    as a session's in its address's: then there must be room in both.
    """

    name: str
    width: int = 1
    waiting: int = 8
    within: FairShare | None = None


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

    def submit(
        self, request: Request, limit: int = INBOX_LIMIT, share: FairShare | None = None, kept: int = 0
    ) -> int:
        """Puts a generation or a benchmark point in its inbox; returns its place in the queue (1 is next).

        Doing it again with the same id changes nothing (0 if a worker has it by now). Raises QueueFull
        if `limit` requests are in the inbox already, or held outside for a share where this one would be
        (`kept` of them are for shares, the outermost counts, with nothing in the queue); TooManyWaiting if a
        share has no room.
        """
        with explained():
            reply = self._submit(keys=[request.inbox], args=_submit_args(request, limit, share, kept))
        return _place(reply, request, limit)

    def frames(
        self, request_id: str, *, after: str = FROM_START, submitted: bool = False
    ) -> Iterator[StreamFrame]:
        """The frames of a request as they come, ending with its final one.

        `after` is the stream id of a frame to go on from. With `submitted` the caller knows that the
        request is in the queue: the first look waits for it, where else it asks whether anybody knows it.
        A request that nobody knows (any more) ends in a Failed frame. Raises QueueUnavailable if
        Redis stays away for `follower.OUTAGE_S`.
        """
        follower = StreamFollower(request_id, after, submitted=submitted)
        while not follower.over:
            try:
                found = follower.take(self.read(request_id, follower.after, block_s=follower.block_s))
                yield from found
                if not found and not follower.over:
                    yield from follower.idle(self._standing(request_id))
                    follower.gone(self._lose(request_id, ends=follower.deserted))
            except QueueUnavailable:
                follower.outage()
                time.sleep(_OUTAGE_PAUSE_S)

    def read(
        self, request_id: str, after: str = FROM_START, *, count: int = 1000, block_s: float = 0.0
    ) -> list[StreamFrame]:
        """At most `count` frames after the stream id `after`; waits up to `block_s`, at most BLOCK_S."""
        block = _block_ms(block_s)
        with explained():
            return parse_entries(self._redis.xread({out_key(request_id): after}, count=count, block=block))

    def cancel(self, request_id: str) -> bool:
        """Ends a request: True if at once, because it had not begun; else its worker stops within a frame."""
        with explained():
            return bool(self._cancel(keys=_cancel_keys(request_id), args=_cancel_args(request_id)))

    def position(self, request_id: str) -> int | None:
        """As queries.position."""
        return self._ask(queries.position(request_id))

    def eta(self, request_id: str) -> float | None:
        """As queries.eta."""
        return self._ask(queries.eta(request_id))

    def workers(self) -> list[Heartbeat]:
        """As queries.workers."""
        return self._ask(queries.workers())

    def depth(self) -> dict[str, int]:
        """As queries.depth."""
        return self._ask(queries.depth())

    def _standing(self, request_id: str) -> tuple[bool, StreamFrame | None]:
        return self._ask(queries.standing(request_id))

    def _lose(self, request_id: str, *, ends: bool) -> bool:
        """Whether only one worker may take the request and that one is gone; `ends` it if so."""
        with explained():
            return bool(self._lose_script(keys=_lose_keys(request_id), args=_lose_args(request_id, ends)))

    def _ask(self, query: Query[T]) -> T:
        with explained():
            try:
                commands = next(query)
                while True:
                    commands = query.send(self._replies(commands))
            except StopIteration as answer:
                return cast("T", answer.value)

    def _replies(self, commands: Sequence[Command]) -> list[Any]:
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)  # type: ignore[no-untyped-call]
        return pipe.execute()


class AsyncClient:
    """The same for one event loop. However many requests are followed, one read waits for all of them."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect_async(redis_url)
        self._reader = StreamFanout(self._redis)
        self._seen: list[str] = []
        """Names of the workers that were there when last asked."""
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

    async def submit(
        self, request: Request, limit: int = INBOX_LIMIT, share: FairShare | None = None, kept: int = 0
    ) -> int:
        """As Client.submit."""
        with explained():
            reply = await self._submit(keys=[request.inbox], args=_submit_args(request, limit, share, kept))
        return _place(reply, request, limit)

    async def frames(
        self, request_id: str, *, after: str = FROM_START, submitted: bool = False
    ) -> AsyncGenerator[StreamFrame]:
        """As Client.frames."""
        follower = StreamFollower(request_id, after, submitted=submitted)
        feed: Feed | None = None
        try:
            while not follower.over:
                cancellation.obey()
                try:
                    if follower.rewound and feed is not None:
                        feed.close()
                        feed = None
                    if follower.block_s and feed is None:
                        feed = self._reader.follow(out_key(request_id), follower.after)
                    for frame in await self._next(follower, feed, request_id):
                        yield frame
                except QueueUnavailable:
                    follower.outage()
                    await asyncio.sleep(_OUTAGE_PAUSE_S)
        finally:
            if feed is not None:
                feed.close()

    async def _next(self, follower: StreamFollower, feed: Feed | None, request_id: str) -> list[StreamFrame]:
        found = await (self.read(request_id, follower.after) if feed is None else feed.take(follower.block_s))
        fresh = follower.take(found)
        if not found and not follower.over:
            fresh = follower.idle(await self._standing(request_id))
            follower.gone(await self._lose(request_id, ends=follower.deserted))
        return fresh

    @property
    def following(self) -> int:
        """How many requests' outputs are waited for now."""
        return self._reader.followed

    async def read(
        self, request_id: str, after: str = FROM_START, *, count: int = 1000, block_s: float = 0.0
    ) -> list[StreamFrame]:
        """As Client.read."""
        block = _block_ms(block_s)
        with explained():
            reply = await self._redis.xread({out_key(request_id): after}, count=count, block=block)
        return parse_entries(reply)

    async def cancel(self, request_id: str) -> bool:
        """As Client.cancel."""
        with explained():
            return bool(await self._cancel(keys=_cancel_keys(request_id), args=_cancel_args(request_id)))

    async def position(self, request_id: str) -> int | None:
        """As queries.position."""
        return await self._ask(queries.position(request_id))

    async def eta(self, request_id: str) -> float | None:
        """As queries.eta."""
        return await self._ask(queries.eta(request_id))

    async def workers(self) -> list[Heartbeat]:
        """As queries.workers."""
        found = await self._ask(queries.workers(self._seen))
        self._seen = [worker.name for worker in found]
        return found

    async def environment(self, worker: str) -> dict[str, Any]:
        """As queries.environment."""
        return await self._ask(queries.environment(worker))

    async def depth(self) -> dict[str, int]:
        """As queries.depth."""
        return await self._ask(queries.depth())

    async def _standing(self, request_id: str) -> tuple[bool, StreamFrame | None]:
        return await self._ask(queries.standing(request_id))

    async def _lose(self, request_id: str, *, ends: bool) -> bool:
        keys, args = _lose_keys(request_id), _lose_args(request_id, ends)
        with explained():
            return bool(await self._lose_script(keys=keys, args=args))

    async def _ask(self, query: Query[T]) -> T:
        with explained():
            try:
                commands = next(query)
                while True:
                    commands = query.send(await self._replies(commands))
            except StopIteration as answer:
                return cast("T", answer.value)

    async def _replies(self, commands: Sequence[Command]) -> list[Any]:
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return await pipe.execute()


def _submit_args(request: Request, limit: int, share: FairShare | None, kept: int) -> list[str | int | float]:
    offset = scripts.BENCH_OFFSET if request.inbox == BENCH else 0
    shares: list[str | int] = []
    while share is not None:
        shares = [share.name, share.width, share.waiting, *shares]
        share = share.within
    return [request.id, request.to_entry()["json"], limit, kept, offset, *shares]


def _place(reply: tuple[str, int], request: Request, limit: int) -> int:
    verdict, number = reply
    if verdict == "full":
        raise QueueFull(
            f"the {request.kind} queue holds {number} requests and takes at most {limit};"
            " try again in a moment"
        )
    if verdict == "crowded":
        raise TooManyWaiting(f"{number} of your generations are under way or wait already; let one end first")
    return number


def _cancel_keys(request_id: str) -> list[str]:
    return [out_key(request_id), cancel_key(request_id), owner_key(request_id)]


def _cancel_args(request_id: str) -> list[str]:
    never_began = Done("cancelled", "", NEVER_BEGAN)
    return [request_id, encode_frame(never_began)["json"]]


def _lose_keys(request_id: str) -> list[str]:
    return [out_key(request_id), owner_key(request_id)]


def _lose_args(request_id: str, ends: bool) -> list[str]:
    return [request_id, encode_frame(deserted())["json"] if ends else ""]


def _block_ms(seconds: float) -> int | None:
    """The BLOCK argument; None (not 0, which means for ever) where the read should not wait."""
    return max(1, int(min(seconds, BLOCK_S) * 1000)) if seconds > 0 else None
