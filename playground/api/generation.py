"""The answer to a request: its generations followed to their ends, and cancelled if the client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog

from engine import replies
from engine.errors import EngineError
from engine.serving import cancellation
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import Done, Failed, Frame, Scored, Started, Tokens
from playground import metrics, presence
from playground.api import shapes
from playground.api.errors import ApiError, from_worker
from playground.api.logprobs import logprobs_of
from playground.api.parameters import ApiRequest
from playground.background import in_background
from playground.quota import Tally
from playground.workers import engine_client

log = structlog.get_logger(__name__)

KEEP_ALIVE_S = 10.0
"""A stream on which nothing has come for so long says so, lest a proxy takes it for dead."""
WAITING_FRAMES = 8
"""How many frames of all choices may wait for the client; what it has not taken stays in Redis."""
LAST_FRAME_S = 5.0
"""How long the end of a generation whose client went away is waited for, to be counted."""

_TOLD = (Started, Tokens, Scored, Done, Failed)
"""Frames that a client hears of: of a long prefill only that its stream is alive."""

Arrival = tuple[int, Frame]
"""Which choice, and what has come of it."""


async def outcome(request: ApiRequest) -> dict[str, Any]:
    """The whole answer at once. Raises ApiError."""
    choices = [shapes.Choice() for _ in request.choices]
    async with aclosing(_only_choice(request) if len(choices) == 1 else _arrivals(request)) as arrivals:
        async for arrival in arrivals:
            if arrival is not None:
                _keep(choices[arrival[0]], arrival[1])
    return shapes.whole_answer(request, choices)


def _keep(choice: shapes.Choice, frame: Frame) -> None:
    match frame:
        case Tokens():
            choice.text.append(frame.text)
        case Scored():
            choice.scores.append(frame)
        case Done():
            choice.done = frame


async def events(request: ApiRequest) -> AsyncGenerator[bytes]:
    """The answer as server-sent events.

    Until something has been yielded a refusal by the worker raises ApiError, as it can still be an HTTP
    status. A later failure becomes an `error` event, and no [DONE] follows it.
    """
    streams = [_ChoiceStream(request, index) for index in range(len(request.choices))]
    begun = False
    try:
        async with aclosing(_arrivals(request)) as arrivals:
            async for arrival in arrivals:
                if arrival is None:
                    begun = True
                    yield await _still_waiting([each for each in streams if not each.started])
                    continue
                for data in streams[arrival[0]].chunks(arrival[1]):
                    begun = True
                    yield event(data)
        if request.usage.at_the_end:
            timings = [stream.done.timings for stream in streams if stream.done]
            yield event(shapes.usage_chunk(request, timings))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        if not begun:
            raise
        yield event(error.body())


class _ChoiceStream:
    """Turns the frames of one choice into the stream's chunks."""

    def __init__(self, request: ApiRequest, index: int) -> None:
        self.id = request.choices[index].id
        self.started = False
        """Whether a worker has had it: if that one died it waits for another, and the queue is not why."""
        self._request = request
        self._index = index
        self._introduced = not request.chat
        self._logprobs = logprobs_of(chat=request.chat)
        self._prompt_tokens = 0
        self._tokens = 0
        self.done: Done | None = None

    def chunks(self, frame: Frame) -> list[dict[str, Any]]:
        match frame:
            case Started():
                self.started = True
                self._prompt_tokens = frame.prompt_tokens
            case Tokens():
                self._tokens = frame.seq + len(frame.ids)
                return self._introduction() + (self._text(frame.text) if frame.text else [])
            case Scored():
                return [self._chunk(text="", scores=self._logprobs.of(frame))]
            case Done():
                self.done = frame
                return self._introduction() + self._last_chunks(frame)
        return []

    def _introduction(self) -> list[dict[str, Any]]:
        """A chat's first chunk says who speaks."""
        if self._introduced:
            return []
        self._introduced = True
        return [self._chunk(role=True)]

    def _text(self, text: str) -> list[dict[str, Any]]:
        return [self._chunk(text=text)]

    def _last_chunks(self, done: Done) -> list[dict[str, Any]]:
        if not self._request.chat:
            return [self._chunk(text=done.text, done=done)]
        return (self._text(done.text) if done.text else []) + [self._chunk(done=done)]

    def _chunk(self, **content: Any) -> dict[str, Any]:
        counts = shapes.counts(self._prompt_tokens, self._tokens)
        return shapes.chunk(self._request, self._index, counts=counts, **content)


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _still_waiting(queued: list[_ChoiceStream]) -> bytes:
    """A comment, which clients skip: where the first of the `queued` stands that no worker has taken."""
    try:
        for choice in queued:
            place = await engine_client().position(choice.id)
            if place is not None:
                eta = await engine_client().eta(choice.id)
                about = "" if eta is None else f", about {eta:.0f} s to go"
                return f": waiting, place {place} in the queue{about}\n\n".encode()
    except QueueUnavailable:
        pass  # the followers wait for Redis, and say so if that takes too long
    return b": waiting for the engine\n\n"


# Following ------------------------------------------------------------------------------------------
async def _only_choice(request: ApiRequest) -> AsyncGenerator[Arrival | None]:
    """As `_arrivals`, for an answer of one choice that is not streamed: nothing is to be said before its end,
    so nothing stands between whoever waits and the engine's frames.
    """
    async with aclosing(_frames(request.choices[0].id)) as frames:
        async for frame in frames:
            _is_end(request, frame)
            yield 0, frame


async def _arrivals(request: ApiRequest) -> AsyncGenerator[Arrival | None]:
    """The frames of all choices as they come, and None whenever nothing has come for KEEP_ALIVE_S.

    Ends with the last choice. Raises ApiError as soon as one fails; whatever has not ended is cancelled.
    """
    queue: asyncio.Queue[Arrival] = asyncio.Queue(WAITING_FRAMES)
    followers = [
        asyncio.create_task(_follow(index, choice.id, queue)) for index, choice in enumerate(request.choices)
    ]
    left = len(followers)
    try:
        while left:
            arrival = await _next(queue)
            if arrival is not None:
                left -= _is_end(request, arrival[1])
            yield arrival
    finally:
        # This task may itself be being cancelled: whatever it awaited now would be too.
        for follower in followers:
            in_background(cancellation.end(follower))


async def _next(queue: asyncio.Queue[Arrival]) -> Arrival | None:
    try:
        async with asyncio.timeout(KEEP_ALIVE_S):
            return await queue.get()
    except TimeoutError:
        return None


def _is_end(request: ApiRequest, frame: Frame) -> bool:
    """Whether its choice is done. Raises ApiError if that failed, or nobody here asked for its end."""
    if isinstance(frame, Failed):
        raise from_worker(frame, "messages" if request.chat else "prompt")
    if isinstance(frame, Done) and frame.finish_reason == "cancelled":
        raise ApiError(replies.CANCELLED, "The generation was cancelled by the server; send it again")
    return isinstance(frame, Done)


async def _follow(index: int, generation: str, queue: asyncio.Queue[Arrival]) -> None:
    async with aclosing(_frames(generation)) as frames:
        async for frame in frames:
            await queue.put((index, frame))


async def _frames(generation: str) -> AsyncGenerator[Frame]:
    """What a client hears of one generation. Whoever ends this before its end ends the generation.

    What was generated is charged either way. Where it cannot be followed, the last frame says so.
    """
    tally = Tally(generation)
    end: Done | Failed | None = None
    presence.hold(generation, generation)  # if this process dies, another one ends it
    try:
        async with aclosing(engine_client().batches(generation, submitted=True)) as batches:
            async for batch in batches:
                for _, frame in batch:
                    if isinstance(frame, Tokens):
                        tally.count(frame.seq + len(frame.ids))
                    if isinstance(frame, Done | Failed):
                        end = frame
                    if isinstance(frame, _TOLD):
                        yield frame
    except QueueUnavailable as error:
        yield Failed.of(error.reply, str(error))
    except EngineError as error:  # or whoever waits for the end would wait for ever
        yield Failed.of(replies.INTERNAL, f"what the engine sent cannot be read: {error}")
    finally:
        # All of it beside the answer, which goes first.
        if end is not None:
            in_background(_note_end(generation, tally, end))
        else:
            tally.settle()
            presence.leave(generation)
            in_background(_cancel(generation))


async def _note_end(generation: str, tally: Tally, end: Done | Failed) -> None:
    tally.settle()
    metrics.count_end("api", end)
    await presence.note_end(generation, generation)


async def _cancel(generation: str) -> None:
    """Ends what nobody reads any more, and counts how it ended."""
    try:
        async with asyncio.timeout(LAST_FRAME_S):
            await engine_client().cancel(generation)
            async with aclosing(engine_client().frames(generation, submitted=True)) as frames:
                async for _, frame in frames:
                    if isinstance(frame, Done | Failed):
                        metrics.count_end("api", frame)
    except TimeoutError:
        log.warning("end_not_counted", generation=generation)
    except EngineError as error:
        log.warning("generation_not_cancelled", generation=generation, error=str(error))
