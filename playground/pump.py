"""Carries one generation from its output stream in Redis to one page, no faster than the page shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

from engine import replies
from engine.progress import Progress
from engine.serving import cancellation
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import Done, Failed, Frame, Started, Tokens
from engine.serving.reading import merge_tokens
from playground import metrics, services
from playground.protocol import (
    ServerFrame,
    done_frame,
    failed_frame,
    prefill_frame,
    queued_frame,
    started_frame,
    tokens_frame,
)
from playground.quota import Tally
from playground.transcript import Transcript
from playground.window import MAX_FRAMES, AckWindow
from playground.workers import engine_client

LOOK_EVERY_S = 1.0
"""How often a waiting pump looks at the queue and at its own patience."""

T = TypeVar("T")
Send = Callable[[ServerFrame], Awaitable[int]]
"""Sends a frame to the page and returns its size in bytes."""


class TooSlow(Exception):
    """The page has not acknowledged anything for too long."""


class Pump:
    """One generation on its way to one page that has shown `after` tokens of it already.

    Every token frame is read from the start, so that whoever sees the end has the whole text to keep.
    """

    def __init__(
        self,
        generation: str,
        *,
        seed: int,
        after: int,
        send: Send,
        window: AckWindow | None = None,
    ) -> None:
        self.generation = generation
        self.recorded: asyncio.Task[None] | None = None
        """What writes the row of a generation that has just been submitted."""
        self.begun = asyncio.Event()
        """Set when the first tokens have been sent, or the end."""
        self._seed = seed
        self._after = after
        self._send = send
        self._window = window or AckWindow()
        self._acked = asyncio.Event()
        self._frames: asyncio.Queue[Frame] = asyncio.Queue(MAX_FRAMES)
        self._transcript = Transcript()
        self._tally = Tally(generation)
        self._position: int | None = None
        self.ended = False
        """Whether the final frame has been sent."""

    def ack(self, seq: int) -> None:
        self._window.acked(seq)
        self._acked.set()

    async def run(self) -> None:
        """Until the final frame is sent.

        Raises TooSlow if the page does not keep up, RequestError if the output holds what is no frame.
        """
        reader = asyncio.create_task(self._read())
        try:
            while not self.ended:
                await self._wait_for_room()
                batch = await self._next_frames()
                if not batch and reader.done():
                    reader.result()  # raises what ended it: nothing else will come
                if not batch and not self._transcript.started:
                    await self._tell_position()
                for frame in merge_frames(frame for frame in batch if self._is_new(frame)):
                    await self._forward(frame)
                self._tally.count(self._transcript.tokens)
        finally:
            self._tally.count(self._transcript.tokens)
            self._tally.settle()
            await cancellation.end(reader)

    async def _read(self) -> None:
        """Fills a short queue and waits while it is full: what has not been read stays in Redis."""
        try:
            submitted = self.recorded is not None
            async with aclosing(engine_client().frames(self.generation, submitted=submitted)) as frames:
                async for _, frame in frames:
                    await self._frames.put(frame)
        except QueueUnavailable as error:
            await self._frames.put(Failed.of(error.reply, str(error)))

    async def _wait_for_room(self) -> None:
        while True:
            if self._window.out_of_patience:
                raise TooSlow
            if not self._window.full:
                return
            self._acked.clear()
            await _at_most(self._acked.wait())

    async def _next_frames(self) -> list[Frame]:
        """What has arrived, all of it; waits a moment for something to arrive."""
        if self._frames.empty():
            first = await _at_most(self._frames.get())
            if first is None:
                return []
            frames = [first]
        else:
            frames = []
        while not self._frames.empty():
            frames.append(self._frames.get_nowait())
        return frames

    async def _forward(self, frame: Frame) -> None:
        match frame:
            case Started():
                await self._send(started_frame(self.generation, frame, self._seed))
            case Tokens():
                size = await self._send(tokens_frame(self.generation, frame))
                self._window.sent(frame.seq + len(frame.ids), size)
                self.begun.set()
            case Done() | Failed():
                await self._finish(frame)
            case Progress():
                await self._send(prefill_frame(self.generation, frame))
            case _:
                pass

    def _is_new(self, frame: Frame) -> bool:
        """Whether the page lacks it. It is kept either way."""
        self._transcript.add(frame)
        if not isinstance(frame, Tokens):
            return True
        return frame.seq + len(frame.ids) > self._after

    async def _finish(self, last: Done | Failed) -> None:
        if isinstance(last, Failed):
            await self._send(failed_frame(self.generation, last))
        else:
            await self._send(done_frame(self.generation, last))
        self.ended = True
        self.begun.set()
        if isinstance(last, Failed) and last.reply == replies.QUEUE_AWAY:
            return  # the generation may well go on: only this process has lost sight of it
        if self.recorded is not None:
            await asyncio.wait({self.recorded})
        if await services.record_end(generation=self.generation, transcript=self._transcript, end=last):
            metrics.count_end("playground", last)

    async def _tell_position(self) -> None:
        try:
            position = await engine_client().position(self.generation)
            if position is None or position == self._position:
                return
            self._position = position
            eta = await engine_client().eta(self.generation)
        except QueueUnavailable:
            return  # the reader waits for Redis, and reports if that takes too long
        await self._send(queued_frame(self.generation, position, eta))


def merge_frames(frames: Iterable[Frame]) -> list[Frame]:
    """The same frames with each run of token frames made one."""
    out: list[Frame] = []
    run: list[Tokens] = []
    for frame in frames:
        if isinstance(frame, Tokens):
            run.append(frame)
            continue
        out += [merge_tokens(run)] if run else []
        out.append(frame)
        run = []
    return [*out, merge_tokens(run)] if run else out


async def _at_most(waiting: Coroutine[Any, Any, T]) -> T | None:
    """What `waiting` returns, or None after LOOK_EVERY_S."""
    try:
        async with asyncio.timeout(LOOK_EVERY_S):
            return await waiting
    except TimeoutError:
        return None
