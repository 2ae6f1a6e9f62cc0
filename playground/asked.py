"""What a page asked for, in Redis from before the page hears of it until its row is written.

A page that loses its web process in that moment comes back to another, which finds its request here and
writes the row if nobody else will.
"""

from __future__ import annotations

from typing import cast

import structlog
from msgspec.structs import replace
from redis.exceptions import RedisError

from engine.errors import EngineError
from engine.serving.errors import explain_outage
from engine.serving.messages import GenerateRequest, decode_request
from playground.workers import engine_redis

log = structlog.get_logger(__name__)
KEPT_S = 300
"""Longer than any database takes to write a row; shorter than the output of the generation is kept."""


KEEP = f"""
-- KEYS what was asked; ARGV a generation's id, its request as JSON, the session that owns it.
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'json', ARGV[2], 'owner', ARGV[3])
redis.call('EXPIRE', KEYS[1], {KEPT_S})
"""


async def find(generation: str, owner: str) -> GenerateRequest | None:
    """The request, if the session `owner` asked for it. Raises QueueUnavailable if Redis does not answer."""
    with explain_outage():
        found = cast("dict[str, str]", await engine_redis().hgetall(asked_key(generation)))
    if not owner or found.pop("owner", "") != owner:
        return None
    try:
        return replace(cast("GenerateRequest", decode_request(found)), cache_salt="")
    except EngineError:  # of another version of this project
        return None


async def forget(generation: str) -> None:
    """Its row is written, or never will be."""
    try:
        await engine_redis().delete(asked_key(generation))
    except (RedisError, OSError):
        log.info("asked_not_forgotten", generation=generation)


def asked_key(generation: str) -> str:
    return f"ml:asked:{generation}"
