"""Whether what a visitor is shown is true while Redis stalls and forgets, processes die and clocks differ."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from tests.faults.pages import Socket, Tally, Visitor, session_of, source_address, text_of
from tests.faults.product import Product, at_the_same_time
from tests.waiting import PATIENCE_S, wait_until

SKEW_S = 1200.0
LOST_S = 1.2
"""How much of its newest memory a Redis loses with the power: it writes every second."""


@dataclass
class Truth:
    tally: Tally = field(default_factory=Tally)
    events: list[str] = field(default_factory=list)
    stopped_s: float = 0.0
    unwatched_s: float = 0.0
    rows_running: int = 0


def add_skewed(product: Product, workers: int, tok_s: int) -> None:
    """Web processes and workers whose clocks are 20 minutes fast, right, and 20 minutes slow."""
    offsets = (SKEW_S, -SKEW_S, 0.0)
    for offset in offsets[:2]:
        product.add_web("-m", "tests.faults.clock", str(offset))
    for number, offset in enumerate(offsets):
        names = [f"paced-{i}" for i in range(number, workers, len(offsets))]
        if names:
            where = ("-m", "tests.faults.clock", str(offset), "tests.faults.many_workers", str(tok_s))
            product.add(f"workers-{number}", *where, *names)
    product.wait_for_web()
    product.wait_for_workers(workers)


def run(product: Product, generations: int, pages: int, tokens: int, events: Sequence[str]) -> Truth:
    found = Truth()
    text = text_of(product, tokens)
    asked = itertools.repeat(({"prompt": "to", "max_tokens": tokens}, text))
    each = -(-generations // pages)

    def page(number: int) -> Callable[[Any], None]:
        shifted = product.ports[number % 2 :] + product.ports[: number % 2]
        visitor = Visitor(shifted, found.tally, source_address(number))
        return lambda _stopping: visitor.run(itertools.islice(asked, each), threading.Event())

    with at_the_same_time(*map(page, range(pages)), patience_s=400):
        for event in events:
            time.sleep(1.5)
            _EVENTS[event](product)
            found.events.append(event)
    return found


def stop_after_lost_memory(product: Product) -> float:
    """Seconds from Redis's return, without its memory, to the end of a generation that a page stops then."""
    page = _long_run(product, source_address(90))
    with product.redis() as raw:
        raw.flushall()
    began = time.monotonic()
    page.say(type="stop")
    while (heard := page.hear(PATIENCE_S)) is not None and heard["type"] not in ("done", "error"):
        pass
    assert heard is not None and heard.get("finish_reason") == "cancelled", heard
    page.connection.close()
    return time.monotonic() - began


def end_of_the_unwatched(product: Product, pages: int) -> float:
    """Seconds until nothing is generated any more after all pages left and their web process died."""
    left = [_long_run(product, source_address(91 + number)) for number in range(pages)]
    for page in left:
        page.connection.close()
    product.restart("web-0")
    began = time.monotonic()

    def over() -> bool:
        with product.redis() as raw:
            return raw.hlen("ml:entries") == 0

    wait_until(over, 90, every_s=0.2)
    return time.monotonic() - began


def _long_run(product: Product, address: str) -> Socket:
    """A page with a generation of half a minute in hand."""
    page = Socket(product.ports[0], session_of(product.ports[0], address), address)
    page.say(type="start", prompt="to", max_tokens=32_000)
    while (heard := page.hear(PATIENCE_S)) is not None and heard["type"] != "tokens":
        assert heard["type"] != "error", heard
    return page


def _stall(product: Product) -> None:
    with suppress(RedisError, OSError), product.redis() as raw:
        raw.execute_command("CLIENT", "PAUSE", "10000", "ALL")


def _lose_the_newest(product: Product) -> None:
    """As when the machine of Redis loses its power: what was not on its disk yet is gone."""
    log = _newest_log(product)
    size = log.stat().st_size
    time.sleep(LOST_S)
    product.services["redis"].kill()
    os.truncate(log, size)
    product.services["redis"].start()


def _forget(product: Product) -> None:
    product.services["redis"].kill()
    shutil.rmtree(_newest_log(product).parent)
    product.services["redis"].start()


def _newest_log(product: Product) -> Path:
    return max(
        (product.home.parent / "redis").glob("appendonlydir/*.incr.aof"), key=lambda p: p.stat().st_mtime
    )


def _kill(name: str) -> Callable[[Product], None]:
    return lambda product: product.restart(name)


_EVENTS: Mapping[str, Callable[[Product], None]] = {
    "stall of 10 s": _stall,
    "power of Redis": _lose_the_newest,
    "memory of Redis": _forget,
    "kill of Redis": _kill("redis"),
    "kill of web 0": _kill("web-0"),
    "kill of web 1": _kill("web-1"),
    "kill of workers 0": _kill("workers-0"),
    "kill of workers 1": _kill("workers-1"),
    "kill of workers 2": _kill("workers-2"),
}

ALL_EVENTS = (*_EVENTS, "stall of 10 s", "power of Redis", "stall of 10 s", "memory of Redis")
