"""What a page asked for, in Redis from before the page hears of it until its row is written.

A page that loses its web process in that moment comes back to another, which finds its request here and
writes the row if nobody else will.
"""

from __future__ import annotations

from typing import cast

import structlog
from redis.exceptions import RedisError

from engine.errors import EngineError
from engine.serving.errors import explain_outage
from engine.serving.messages import GenerateRequest, decode_request
from playground.workers import engine_redis

log = structlog.get_logger(__name__)
KEPT_S = 300
"""Longer than any database takes to write a row; shorter than the output of the generation is kept."""


async def keep(request: GenerateRequest, owner: str) -> None:
    """The session `owner` asked for it. A session without a name cannot come back, so nothing is kept."""
    if not owner:
        return
    key = _key(request.id)
    pipe = engine_redis().pipeline(transaction=False)
    pipe.hset(key, mapping=request.to_entry())  # type: ignore[arg-type]  # redis-py's dict is invariant
    pipe.hset(key, "owner", owner)
    pipe.expire(key, KEPT_S)
    try:
        await pipe.execute()
    except (RedisError, OSError) as error:  # the row follows; without it only a restart would be noticed
        log.warning("asked_not_kept", generation=request.id, error=str(error))


async def find(generation: str, owner: str) -> GenerateRequest | None:
    """The request, if the session `owner` asked for it. Raises QueueUnavailable if Redis does not answer."""
    with explain_outage():
        found = cast("dict[str, str]", await engine_redis().hgetall(_key(generation)))
    if not owner or found.pop("owner", "") != owner:
        return None
    try:
        return cast("GenerateRequest", decode_request(found))
    except EngineError:  # of another version of this project
        return None


async def forget(generation: str) -> None:
    """Its row is written, or never will be."""
    try:
        await engine_redis().delete(_key(generation))
    except (RedisError, OSError):
        log.info("asked_not_forgotten", generation=generation)


def _key(generation: str) -> str:
    return f"ml:asked:{generation}"
