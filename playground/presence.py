"""Who watches a generation, over all web processes; one that nobody watches any more is cancelled.

A page that reloads is back within GRACE_S and resumes; only then is the worker's time taken away.
"""

from __future__ import annotations

import asyncio

import structlog
from redis.exceptions import RedisError

from engine.serving.errors import QueueUnavailable, unavailable
from engine.serving.messages import Done, Failed
from playground import metrics, services
from playground.background import in_background
from playground.quota import charge
from playground.transcript import Transcript
from playground.workers import engine_client, engine_redis

log = structlog.get_logger(__name__)
GRACE_S = 15.0
FORGET_S = 3600
"""A web process that dies leaves its viewers behind; they keep a generation alive for no longer than this."""


def _viewers_key(generation: str) -> str:
    return f"ml:viewers:{generation}"


async def arrive(generation: str, viewer: str) -> None:
    """`viewer` (any name of its own) watches from now on.

    Raises QueueUnavailable if Redis does not answer.
    """
    pipe = engine_redis().pipeline(transaction=False)
    pipe.sadd(_viewers_key(generation), viewer)
    pipe.expire(_viewers_key(generation), FORGET_S)
    try:
        await pipe.execute()
    except (RedisError, OSError) as error:
        raise unavailable(error) from error


def leave(generation: str, viewer: str) -> None:
    """`viewer` stopped watching before the end: unless somebody comes within GRACE_S, it is cancelled."""
    in_background(_wait_then_cancel(generation, viewer))


async def _wait_then_cancel(generation: str, viewer: str) -> None:
    try:
        # Whoever comes back has another name by then, so this one can stay on the list until the end.
        await asyncio.sleep(GRACE_S)
        redis = engine_redis()
        await redis.srem(_viewers_key(generation), viewer)
        if await redis.scard(_viewers_key(generation)):
            return
        log.info("generation_abandoned", generation=generation)
        await engine_client().cancel(generation)
        await _record_rest(generation)
    except (QueueUnavailable, RedisError, OSError) as error:
        log.warning("abandoned_generation_not_cancelled", generation=generation, error=str(error))


async def _record_rest(generation: str) -> None:
    """Keeps what an abandoned generation had written, as its last viewer would have."""
    transcript = Transcript()
    async for _, frame in engine_client().frames(generation):
        transcript.add(frame)
        if isinstance(frame, Done | Failed) and await services.record_end(
            generation=generation, transcript=transcript, end=frame
        ):
            metrics.ended("playground", frame)
    await charge(generation, transcript.tokens)
