"""One blocking read for all the output streams that an event loop follows.

A read a stream costs a connection, a command and a wake-up for each frame of each stream. Here one XREAD
names every stream whose reader has room, so that under load each round trip brings the frames of many. A
reader that falls behind drops out of the read until it has caught up: what it has not taken stays in Redis.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from engine.errors import EngineError, RequestError
from engine.serving import cancellation
from engine.serving.connection import BLOCK_S
from engine.serving.errors import unavailable
from engine.serving.kept_connections import KeptConnections
from engine.serving.messages import frame_number
from engine.serving.reading import Entries, StreamFrame, frames_of, streams_of_raw

log = logging.getLogger(__name__)

BUFFER_FRAMES = 64
"""A reader that has so many frames before it is not read for; one read may add as many once more."""
_WAKE_EXPIRES_S = 3600
_OUTAGE_PAUSE_S = 0.2


class Feed:
    """The frames of one stream after the stream id `after`, for one reader. Close it when done."""

    def __init__(
        self, key: str, after: str, resume: Callable[[], None], leave: Callable[[Feed], None]
    ) -> None:
        self.key = key
        self.after = after
        """The stream id of the last frame that is or was in the buffer."""
        self._resume = resume
        self._leave = leave
        self._frames: deque[StreamFrame] = deque()
        self._failure: EngineError | None = None
        self._changed = asyncio.Event()

    @property
    def wants_more(self) -> bool:
        return len(self._frames) < BUFFER_FRAMES

    async def take(self, wait_s: float) -> list[StreamFrame]:
        """What has come, waiting up to `wait_s` for something. Raises what `fail` was given."""
        if not self._frames and self._failure is None:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        was_full = not self.wants_more
        frames = list(self._frames)
        self._frames.clear()
        if was_full:
            self._resume()
        return frames

    def add(self, frames: list[StreamFrame]) -> None:
        """Frames of the stream, in order; those that the reader has are left out."""
        seen = frame_number(self.after)
        fresh = [frame for frame in frames if frame_number(frame.id) > seen]
        if fresh:
            self.after = fresh[-1].id
            self._frames.extend(fresh)
            self._changed.set()

    def fail(self, failure: EngineError) -> None:
        self._failure = failure
        self._changed.set()

    def close(self) -> None:
        self._leave(self)


class StreamFanout:
    """Reads on a task of its own while anybody follows anything. Belongs to one event loop."""

    def __init__(self, connection: redis.asyncio.Redis) -> None:
        self._redis, self._connections = connection, KeptConnections(connection)
        self._feeds: dict[str, list[Feed]] = {}
        self._wake_key = f"ml:wake:{uuid.uuid4().hex}"
        self._woken = "0-0"
        """The last entry of the wake key that a read has brought."""
        self._reading = False
        self._reader: asyncio.Task[None] | None = None
        self._wakers: set[asyncio.Task[None]] = set()

    @property
    def stream_count(self) -> int:
        """How many streams are followed now."""
        return len(self._feeds)

    def follow(self, key: str, after: str) -> Feed:
        feed = Feed(key, after, self._look_again, self._leave)
        self._feeds.setdefault(key, []).append(feed)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._run())
        self._look_again()
        return feed

    async def close(self) -> None:
        self._feeds.clear()
        for task in (self._reader, *self._wakers):
            if task is not None:
                await cancellation.end(task)

    def _leave(self, feed: Feed) -> None:
        feeds = self._feeds.get(feed.key, [])
        if feed in feeds:
            feeds.remove(feed)
        if not feeds:
            self._feeds.pop(feed.key, None)
        if not self._feeds:  # the read ends now, so that the next stream need not end it first
            self._look_again()

    def _look_again(self) -> None:
        """The read that waits now does not name every stream that it should: end it."""
        if self._reading:
            task = asyncio.create_task(self._wake())
            self._wakers.add(task)
            task.add_done_callback(self._wakers.discard)

    async def _wake(self) -> None:
        """The waiting read names this key too, so an entry ends it, however late the read itself arrives."""
        with suppress(RedisError, OSError):
            pipe = self._redis.pipeline(transaction=False)
            pipe.xadd(self._wake_key, {"": ""}, maxlen=1, approximate=False)
            pipe.expire(self._wake_key, _WAKE_EXPIRES_S)
            await pipe.execute()

    async def _run(self) -> None:
        while self._feeds:
            try:
                await self._read(self._streams_to_read())
            except (RedisError, OSError) as error:
                self._fail_all(unavailable(error))
                await asyncio.sleep(_OUTAGE_PAUSE_S)

    async def _read(self, wanted: dict[str, str]) -> None:
        """What comes is handed on the moment that it arrives: the next read waits until its readers have had
        their turn.
        """
        streams = {self._wake_key: self._woken, **wanted}
        block = int(BLOCK_S * 1000)
        read = ("XREAD", "COUNT", BUFFER_FRAMES, "BLOCK", block, "STREAMS", *streams, *streams.values())
        self._reading = True
        try:
            await self._connections.ask(read, partial(self._hand_on, wanted))
        finally:
            self._reading = False

    def _hand_on(self, wanted: dict[str, str], reply: Any) -> None:
        self._reading = False
        for key, entries in streams_of_raw(reply):
            if key == self._wake_key:
                self._woken = entries[-1][0]
            else:
                self._deliver(key, entries, wanted[key])

    def _streams_to_read(self) -> dict[str, str]:
        """The streams to read on, each from where the reader who is furthest behind has got to."""
        wanted: dict[str, str] = {}
        for key, feeds in self._feeds.items():
            open_feeds = [feed.after for feed in feeds if feed.wants_more]
            if open_feeds:
                wanted[key] = min(open_feeds, key=frame_number)
        return wanted

    def _deliver(self, key: str, entries: Entries, start: str) -> None:
        """Whoever stands further back than `start` would lose what lies between: the next read is theirs."""
        begun = frame_number(start)
        waiting = [feed for feed in self._feeds.get(key, ()) if feed.wants_more]
        feeds = [feed for feed in waiting if frame_number(feed.after) >= begun]
        try:
            frames = frames_of(entries)
        except RequestError as error:
            for feed in feeds:
                feed.fail(error)
            return
        for feed in feeds:
            feed.add(frames)

    def _fail_all(self, failure: EngineError) -> None:
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.fail(failure)
