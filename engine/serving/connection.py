"""How this project connects to Redis: one place for every time limit.

redis-py 8 gives up on any reply after 5 s unless told otherwise, a blocking read's included. So every
limit is set here, and a blocking read waits less than its connection does.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

BLOCK_S = 2.0
"""The longest that a blocking read waits in the server before it is asked again."""
_REPLY_S = 5.0
_BLOCKING_REPLY_S = 30.0
"""Only a dead connection stays silent for so long: `BLOCK_S` has passed many times."""


def _options(url: str, reply_s: float) -> dict[str, Any]:
    keepalive = (
        {} if url.startswith("unix:") else {"socket_keepalive": True}
    )  # a socket file has no such thing
    return {
        "decode_responses": True,
        "socket_timeout": reply_s,
        "socket_connect_timeout": 5.0,
        **keepalive,
    }


def connect(url: str) -> redis.Redis:
    """For commands that answer at once. Connects on first use."""
    return redis.Redis.from_url(url, **_options(url, _REPLY_S))


def connect_blocking(url: str) -> redis.Redis:
    """For reads that wait up to `BLOCK_S` seconds."""
    return redis.Redis.from_url(url, **_options(url, _BLOCKING_REPLY_S))


def connect_async(url: str) -> redis.asyncio.Redis:
    """For one event loop, blocking reads included."""
    return redis.asyncio.Redis.from_url(url, **_options(url, _BLOCKING_REPLY_S))
