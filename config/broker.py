"""Celery's spelling of a Redis address."""

from __future__ import annotations


def celery_broker(url: str) -> str:
    """`url` with `redis+socket://` for a socket, where Redis clients write `unix://`."""
    return "redis+socket://" + url.removeprefix("unix://") if url.startswith("unix://") else url
