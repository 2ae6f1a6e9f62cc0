"""What is asked of Redis about requests and workers, said once for both clients, blocking and not.

A query is a generator: it yields commands, receives their replies, and returns what they mean.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from engine.serving.estimate import seconds_to_start
from engine.serving.messages import (
    BENCH,
    INTERACTIVE,
    WAITING,
    WORKERS,
    Heartbeat,
    out_key,
    owner_key,
    service_key,
    worker_inbox,
    worker_key,
)
from engine.serving.reading import StreamFrame, parse_entries

log = logging.getLogger(__name__)
T = TypeVar("T")
Command = tuple[Any, ...]
Query = Generator[Sequence[Command], list[Any], T]


def position(request_id: str) -> Query[int | None]:
    """Place in the queue, 1 is next; None once a worker has it (or if nobody knows it)."""
    [rank] = yield [("ZRANK", WAITING, request_id)]
    return None if rank is None else int(rank) + 1


def eta(request_id: str) -> Query[float | None]:
    """Seconds until the request starts, judging by recent ones; None if unknown, 0 once it has."""
    rank, service_ms = yield [
        ("ZRANK", WAITING, request_id),
        ("LRANGE", service_key(INTERACTIVE), 0, -1),
    ]
    if rank is None:
        return 0.0
    found = yield from workers()
    return seconds_to_start(rank + 1, [float(ms) for ms in service_ms], found, int(time.time() * 1000))


def workers(known: Iterable[str] = ()) -> Query[list[Heartbeat]]:
    """The live workers, by name. One round trip if their names are those `known`."""
    guess = sorted(known)
    names, *found = yield [("SMEMBERS", WORKERS), *_heartbeats(guess)]
    if sorted(names) != guess:
        found = yield _heartbeats(sorted(names))
    return [worker for said in found if said and (worker := _readable(said)) is not None]


def _readable(said: str) -> Heartbeat | None:
    """None for what is no heartbeat: whoever wrote it, the other workers are there."""
    try:
        return Heartbeat.from_hash({"json": said})
    except ValueError as error:
        log.warning("a heartbeat cannot be read: %s", error)
        return None


def _heartbeats(names: Iterable[str]) -> list[Command]:
    return [("HGET", worker_key(name), "json") for name in names]


def environment(worker: str) -> Query[dict[str, Any]]:
    """What `engine.measuring.environment.capture` said when a worker opened its model; {} once it is gone."""
    [found] = yield [("HGET", worker_key(worker), "environment")]
    told: dict[str, Any] = json.loads(found or "{}")
    return told


def depth() -> Query[dict[str, int]]:
    """How many requests each inbox holds, the one in a worker's hands included."""
    [names] = yield [("SMEMBERS", WORKERS)]
    inboxes = (BENCH, INTERACTIVE, *map(worker_inbox, names))
    bench, *interactive = yield [("XLEN", inbox) for inbox in inboxes]
    return {"interactive": sum(interactive), "bench": bench}


def standing(request_id: str) -> Query[tuple[bool, StreamFrame | None]]:
    """Whether Redis knows the request, and the newest frame of its output."""
    score, existing, newest = yield [
        ("ZSCORE", WAITING, request_id),
        ("EXISTS", owner_key(request_id), out_key(request_id)),
        ("XREVRANGE", out_key(request_id), "+", "-", "COUNT", 1),
    ]
    frames = parse_entries({"": newest})
    return score is not None or existing > 0, frames[0] if frames else None
