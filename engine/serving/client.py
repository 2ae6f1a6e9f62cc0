"""Asking workers for things: submit, follow, cancel, and see who is there.

`AsyncClient` awaits (consumers, views) and belongs to one event loop; `Client` is its face for code that
blocks (Celery tasks, tools, tests). Both raise QueueUnavailable when Redis does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from engine.serving import cancellation, scripts
from engine.serving.connection import BLOCK_S, connect_async
from engine.serving.errors import QueueUnavailable, explain_outage
from engine.serving.estimate import seconds_to_start
from engine.serving.fanout import Feed, StreamFanout
from engine.serving.follower import StreamFollower, desertion
from engine.serving.kept_connections import KeptConnections
from engine.serving.messages import (
    BENCH,
    INBOX_LIMIT,
    INTERACTIVE,
    WAITING,
    WORKERS,
    Done,
    Heartbeat,
    Request,
    cancel_key,
    encode_frame,
    out_key,
    owner_key,
    service_key,
    worker_inbox,
    worker_key,
)
from engine.serving.reading import FROM_START, StreamFrame, frames_of, parse_entries
from engine.serving.submission import FairShare, Submission
from engine.timings import NEVER_BEGAN

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
Command = tuple[str | int, ...]
_OUTAGE_PAUSE_S = 0.2


class AsyncClient:
    """For one event loop. However many requests are followed, one read waits for all of them."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect_async(redis_url)
        self._connections = KeptConnections(self._redis)
        self._reader = StreamFanout(self._redis)
        self._names: list[str] = []
        """Of the workers that were there when last asked, sorted."""
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
        """Puts a generation or a benchmark point in its inbox; returns its place in the queue (1 is next).

        Doing it again with the same id changes nothing (0 if a worker has it by now). Raises QueueFull
        if `limit` requests are in the inbox already, or held outside for a share where this one would be
        (`kept` of them are for shares, the outermost counts, with nothing in the queue); TooManyWaiting if a
        share has no room.
        """
        submission = Submission(request, limit, share, kept)
        with explain_outage():
            reply = await self._connections.run(self._submit, submission.keys, submission.args)
        return submission.place(reply)

    async def frames(
        self, request_id: str, *, after: str = FROM_START, submitted: bool = False
    ) -> AsyncGenerator[StreamFrame]:
        """The frames of `batches`, one by one."""
        async with aclosing(self.batches(request_id, after=after, submitted=submitted)) as batches:
            async for batch in batches:
                for frame in batch:
                    yield frame

    async def batches(
        self, request_id: str, *, after: str = FROM_START, submitted: bool = False
    ) -> AsyncGenerator[list[StreamFrame]]:
        """The frames of a request as they come, those that came together at once; the final one ends them.

        `after` is the stream id of a frame to go on from. With `submitted` the caller knows that the
        request is in the queue: the first look waits for it, where else it asks whether anybody knows it.
        A request that nobody knows (any more) ends in a Failed frame. Raises QueueUnavailable if
        Redis stays away for `follower.OUTAGE_S`.
        """
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
                    if batch := await self._next(follower, feed, request_id):
                        yield batch
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
            fresh = follower.idle(await self._look_up(request_id))
            follower.gone(await self._lose(request_id, ends=follower.deserted))
        return fresh

    @property
    def stream_count(self) -> int:
        """How many requests' outputs are waited for now."""
        return self._reader.stream_count

    async def read(
        self, request_id: str, after: str = FROM_START, *, count: int = 1000, block_s: float = 0.0
    ) -> list[StreamFrame]:
        """At most `count` frames after the stream id `after`; waits up to `block_s`, at most BLOCK_S."""
        # None does not wait; 0 would wait for ever.
        block = max(1, int(min(block_s, BLOCK_S) * 1000)) if block_s > 0 else None
        with explain_outage():
            reply = await self._redis.xread({out_key(request_id): after}, count=count, block=block)
        return parse_entries(reply)

    async def cancel(self, request_id: str) -> bool:
        """Ends a request: True if at once, because it had not begun; else its worker stops within a frame."""
        keys = [out_key(request_id), cancel_key(request_id), owner_key(request_id)]
        never_began = encode_frame(Done("cancelled", "", NEVER_BEGAN))["json"]
        with explain_outage():
            return bool(await self._cancel(keys=keys, args=[request_id, never_began]))

    async def position(self, request_id: str) -> int | None:
        """Place in the queue, 1 is next; None once a worker has it (or if nobody knows it)."""
        [rank] = await self._ask([("ZRANK", WAITING, request_id)])
        return None if rank is None else int(rank) + 1

    async def eta(self, request_id: str) -> float | None:
        """Seconds until the request starts, judging by recent ones; None if unknown, 0 once it has."""
        rank, service_ms = await self._ask(
            [("ZRANK", WAITING, request_id), ("LRANGE", service_key(INTERACTIVE), 0, -1)]
        )
        if rank is None:
            return 0.0
        return seconds_to_start(rank + 1, [float(ms) for ms in service_ms], await self.workers())

    async def workers(self) -> list[Heartbeat]:
        """The live workers, by name. One round trip while they are those of the last time."""
        known = self._names
        names, *found = await self._ask([("SMEMBERS", WORKERS), *_heartbeats(known)])
        if sorted(names) != known:
            self._names = sorted(names)
            found = await self._ask(_heartbeats(self._names))
        return [worker for said in found if said and (worker := _readable(said)) is not None]

    async def environment(self, worker: str) -> dict[str, Any]:
        """What `environment.capture` said of a worker as it opened its model; {} once it is gone."""
        [found] = await self._ask([("HGET", worker_key(worker), "environment")])
        return msgspec.json.decode(found or "{}", type=dict[str, Any])

    async def depth(self) -> dict[str, int]:
        """How many requests each inbox holds, the one in a worker's hands included."""
        [names] = await self._ask([("SMEMBERS", WORKERS)])
        inboxes = (BENCH, INTERACTIVE, *map(worker_inbox, names))
        bench, *interactive = await self._ask([("XLEN", inbox) for inbox in inboxes])
        return {"interactive": sum(interactive), "bench": bench}

    async def _look_up(self, request_id: str) -> tuple[bool, StreamFrame | None]:
        """Whether Redis knows the request, and the newest frame of its output."""
        score, existing, newest = await self._ask(
            [
                ("ZSCORE", WAITING, request_id),
                ("EXISTS", owner_key(request_id), out_key(request_id)),
                ("XREVRANGE", out_key(request_id), "+", "-", "COUNT", 1),
            ]
        )
        frames = frames_of(newest)
        return score is not None or existing > 0, frames[0] if frames else None

    async def _lose(self, request_id: str, *, ends: bool) -> bool:
        """Whether only one worker may take the request and that one is gone; `ends` it if so."""
        last = encode_frame(desertion())["json"] if ends else ""
        keys = [out_key(request_id), owner_key(request_id)]
        with explain_outage():
            return bool(await self._lose_script(keys=keys, args=[request_id, last]))

    async def _ask(self, commands: Iterable[Command]) -> list[Any]:
        """The replies, of one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        with explain_outage():
            return await pipe.execute()


def _heartbeats(names: Sequence[str]) -> list[Command]:
    return [("HGET", worker_key(name), "json") for name in names]


def _readable(said: str) -> Heartbeat | None:
    """None for what is no heartbeat: whoever wrote it, the other workers are there."""
    try:
        return Heartbeat.from_hash({"json": said})
    except ValueError as error:
        log.warning("a heartbeat cannot be read: %s", error)
        return None


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(method(self.client, *args, **kwargs))

    return call


class Client:
    """AsyncClient for ordinary code, on an event loop and a thread of its own. Threads may share one."""

    def __init__(self, redis_url: str) -> None:
        self.client = AsyncClient(redis_url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()

    submit = _blocking(AsyncClient.submit)
    read = _blocking(AsyncClient.read)
    cancel = _blocking(AsyncClient.cancel)
    position = _blocking(AsyncClient.position)
    eta = _blocking(AsyncClient.eta)
    workers = _blocking(AsyncClient.workers)
    depth = _blocking(AsyncClient.depth)

    def frames(
        self, request_id: str, *, after: str = FROM_START, submitted: bool = False
    ) -> Iterator[StreamFrame]:
        """As AsyncClient.frames."""
        frames = self.client.frames(request_id, after=after, submitted=submitted)

        async def next_frame() -> StreamFrame | None:
            return await anext(frames, None)

        try:
            while (frame := self.wait(next_frame())) is not None:
                yield frame
        finally:
            if not self._loop.is_closed():
                self.wait(frames.aclose())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises, on the client's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.wait(self._loop.shutdown_asyncgens())
        self.wait(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
