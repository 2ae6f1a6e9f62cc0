"""One generation for the API: submitted, followed to its end, and cancelled if the client goes away."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog

from engine.errors import EngineError
from engine.serving.client import QueueFull, QueueUnavailable
from engine.serving.messages import Done, Failed, Frame, Heartbeat, Tokens
from playground import metrics
from playground.api import shapes
from playground.api.errors import ApiError, from_worker, model_not_found, unavailable
from playground.api.parameters import ApiRequest
from playground.background import in_background
from playground.workers import engine_client

log = structlog.get_logger(__name__)
NO_WORKER = "No engine worker is running; try again once one is"


async def live_workers() -> list[Heartbeat]:
    """The workers that serve something. Raises ApiError if there is none."""
    try:
        workers = await engine_client().workers()
    except QueueUnavailable as error:
        raise unavailable(str(error), "queue_unavailable") from error
    if not workers:
        raise unavailable(NO_WORKER, "no_worker")
    return workers


async def submit(request: ApiRequest) -> None:
    """Puts the request in the inbox. Raises ApiError if no worker serves its model, or the inbox is full."""
    served = sorted({worker.model for worker in await live_workers()})
    if request.generate.model not in served:
        raise model_not_found(request.generate.model, served)
    try:
        await engine_client().submit(request.generate)
    except QueueFull as error:
        raise unavailable(str(error), "queue_full") from error
    except QueueUnavailable as error:
        raise unavailable(str(error), "queue_unavailable") from error


async def outcome(request: ApiRequest) -> dict[str, Any]:
    """The whole answer at once. Raises ApiError."""
    text: list[str] = []
    async with aclosing(_frames(request)) as frames:
        async for frame in frames:
            if isinstance(frame, Tokens):
                text.append(frame.text)
            elif isinstance(frame, Done):
                whole = "".join(text) + frame.text
                return shapes.whole_answer(
                    request, request.generate.model, whole, frame.finish_reason, frame.timings
                )
    raise AssertionError("frames end with a final one")


async def events(request: ApiRequest) -> AsyncGenerator[bytes]:
    """The answer as server-sent events.

    The first event is awaited before any is yielded, so a refusal by the worker can still be an HTTP
    status: it raises ApiError. A later failure becomes an `error` event, and no [DONE] follows it.
    """
    model = request.generate.model
    begun = False
    async with aclosing(_frames(request)) as frames:
        try:
            async for frame in frames:
                if not begun and request.chat and isinstance(frame, Tokens | Done):
                    yield event(shapes.chunk(request, model, role=True))
                begun = begun or isinstance(frame, Tokens)
                if isinstance(frame, Tokens) and frame.text:
                    yield event(shapes.chunk(request, model, text=frame.text))
                elif isinstance(frame, Done):
                    for data in _ending(request, model, frame):
                        yield event(data)
                    yield b"data: [DONE]\n\n"
        except ApiError as error:
            if not begun:
                raise
            yield event(error.body())


def _ending(request: ApiRequest, model: str, done: Done) -> list[dict[str, Any]]:
    chunks = []
    if done.text and request.chat:
        chunks.append(shapes.chunk(request, model, text=done.text))
    last_text = None if request.chat else done.text
    chunks.append(
        shapes.chunk(request, model, text=last_text, finish_reason=done.finish_reason, timings=done.timings)
    )
    if request.include_usage:
        chunks.append(shapes.usage_chunk(request, model, done.timings))
    return chunks


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _frames(request: ApiRequest) -> AsyncGenerator[Frame]:
    """The request's frames. A failure, or a cancellation that nobody here asked for, raises ApiError."""
    generation = request.generate.id
    ended = False
    try:
        async for _, frame in engine_client().frames(generation):
            if isinstance(frame, Done | Failed):
                ended = True
                metrics.ended("api", frame)
                _check_end(frame)
            yield frame
    except QueueUnavailable as error:
        raise unavailable(str(error), "queue_unavailable") from error
    finally:
        if not ended:
            # This task may itself be being cancelled: whatever it awaited now would be too.
            in_background(_cancel(generation))


def _check_end(frame: Done | Failed) -> None:
    if isinstance(frame, Failed):
        raise from_worker(frame)
    if frame.finish_reason == "cancelled":
        raise unavailable("The generation was cancelled by the server; send it again", "cancelled")


async def _cancel(generation: str) -> None:
    try:
        await engine_client().cancel(generation)
    except EngineError as error:
        log.warning("generation_not_cancelled", generation=generation, error=str(error))
