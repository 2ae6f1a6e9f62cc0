"""Where Redis is. Redis clients, Celery and Channels each write the same socket a little differently."""

from __future__ import annotations

from pathlib import Path


def embedded_redis(home: Path) -> str:
    """The embedded server of the installation under `home`: a socket that only its owner can open."""
    return f"unix://{home / 'redis.sock'}"


def celery_broker(url: str) -> str:
    """`url` as Celery spells it: `redis+socket://` for a socket."""
    return "redis+socket://" + url.removeprefix("unix://") if url.startswith("unix://") else url
