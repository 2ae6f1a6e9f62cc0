"""Carries one generation from its output stream in Redis to one page, no faster than the page shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import aclosing
from itertools import zip_longest
from typing import Protocol

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
    progress_frame,
    queued_frame,
    started_frame,
    tokens_frame,
)
from playground.quota import Tally
from playground.transcript import Transcript
from playground.window import AckWindow
from playground.workers import engine_client

LOOK_EVERY_S = 1.0
"""How often a waiting pump looks at the queue and at its own patience."""


class Send(Protocol):
    """Sends a frame to the page, with the next one if there is `more` at once; returns its size in bytes."""

    def __call__(self, frame: ServerFrame, *, more: bool = False) -> Awaitable[int]: ...


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
        carrying = asyncio.create_task(self._carry())
        try:
            while not (await asyncio.wait({carrying}, timeout=LOOK_EVERY_S))[0]:
                if self._window.out_of_patience and not self.ended:
                    raise TooSlow
                if not self._transcript.started:
                    await self._tell_position()
            carrying.result()  # raises what ended it
        finally:
            await cancellation.end(carrying)
            self._tally.count(self._transcript.tokens)
            self._tally.settle()

    async def _carry(self) -> None:
        """Reads no more than the page has room for: what has not been read stays in Redis."""
        submitted = self.recorded is not None
        try:
            async with aclosing(engine_client().batches(self.generation, submitted=submitted)) as batches:
                async for batch in batches:
                    frames = merge_frames(frame for _, frame in batch if self._is_new(frame))
                    for frame, following in zip_longest(frames, frames[1:]):
                        await self._forward(frame, more=isinstance(following, Tokens))
                    self._tally.count(self._transcript.tokens)
                    await self._room()
        except QueueUnavailable as error:
            await self._finish(Failed.of(error.reply, str(error)))

    async def _room(self) -> None:
        """Until the page has shown enough of what it was sent. After the end nothing more is to come."""
        while self._window.full and not self.ended:
            self._acked.clear()
            await self._acked.wait()

    async def _forward(self, frame: Frame, *, more: bool) -> None:
        match frame:
            case Started():
                await self._send(started_frame(self.generation, frame, self._seed), more=more)
            case Tokens():
                size = await self._send(tokens_frame(self.generation, frame))
                self._window.sent(frame.seq + len(frame.ids), size)
                self.begun.set()
            case Done() | Failed():
                await self._finish(frame)
            case Progress():
                await self._send(progress_frame(self.generation, frame))
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
        if not self._transcript.started:
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
