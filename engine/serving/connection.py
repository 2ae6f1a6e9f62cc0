"""How this project connects to Redis: one place for every time limit.

redis-py 8 gives up on any reply after 5 s unless told otherwise, a blocking read's included. So every
limit is set here, and a blocking read waits less than its connection does.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from engine.errors import ConfigError

BLOCK_S = 2.0
"""The longest that a blocking read waits in the server before it is asked again."""
_REPLY_S = 5.0
_BLOCKING_REPLY_S = 30.0
"""Only a dead connection stays silent for so long: `BLOCK_S` has passed many times."""


def _options(url: str, reply_s: float) -> dict[str, Any]:
    _check(url)
    options = {"decode_responses": True, "socket_timeout": reply_s, "socket_connect_timeout": 5.0}
    if not url.startswith("unix:"):  # a socket file has no such thing
        options["socket_keepalive"] = True
    return options


def _check(url: str) -> None:
    """Raises ConfigError if `url` is no Redis URL; the message leaves it out, as it may hold a password."""
    try:
        redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigError(
            "the Redis URL (REDIS_URL, --redis) cannot be read;"
            " it must be redis://HOST:6379/0, rediss://HOST:6379/0 or unix:///PATH"
        ) from error


def _patience() -> tuple[ExponentialBackoff, int]:
    """Some 1.3 s of trying again: a dropped connection mends unseen, an outage is soon told."""
    return ExponentialBackoff(cap=0.5, base=0.05), 5


def connect(url: str) -> redis.Redis:
    """For commands that answer at once. Connects on first use."""
    return redis.Redis.from_url(url, retry=Retry(*_patience()), **_options(url, _REPLY_S))


def connect_blocking(url: str) -> redis.Redis:
    """For reads that wait up to `BLOCK_S` seconds."""
    return redis.Redis.from_url(url, retry=Retry(*_patience()), **_options(url, _BLOCKING_REPLY_S))


def connect_async(url: str) -> redis.asyncio.Redis:
    """For one event loop, blocking reads included."""
    return redis.asyncio.Redis.from_url(
        url, retry=AsyncRetry(*_patience()), **_options(url, _BLOCKING_REPLY_S)
    )
