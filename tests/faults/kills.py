"""Processes killed at random while visitors generate and sweeps run: nothing is lost, nothing comes twice."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError
from engine.serving.client import Client
from tests.faults.pages import ApiClient, Tally, Visitor, source_address, text_of
from tests.faults.product import Product, at_the_same_time
from tests.waiting import wait_until

TOK_S = 300
ROWS = 4
"""How many requests a worker takes at once."""
ROWS_MUST_END_S = 120.0
SWEEPS_MUST_END_S = 420.0
Asked = tuple[Mapping[str, Any], str]


@dataclass
class Killed:
    """What a series of kills came to."""

    tally: Tally
    kills: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    """The most streams that one worker had in hand."""
    rows_running: int = 0
    rows_ended_s: float = 0.0
    points: int = 0
    measured: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    sweeps_ended_s: float = 0.0


def visitors(
    product: Product, tally: Tally, text: str, tokens: int, *, pages: int, clients: int
) -> list[Callable[[threading.Event], object]]:
    """So many pages and clients of /v1, each asking one thing after another until it is told to stop."""
    ports = product.ports

    def page(number: int) -> Callable[[threading.Event], object]:
        shifted = ports[number % len(ports) :] + ports[: number % len(ports)]
        visitor = Visitor(shifted, tally, source_address(number))
        return lambda stopping: visitor.run(_requests(text, tokens), stopping)

    def client(number: int) -> Callable[[threading.Event], object]:
        caller = ApiClient(ports, tally, source_address(100 + number))
        return lambda stopping: caller.run(_requests(text, tokens), stopping)

    return [*map(page, range(pages)), *map(client, range(clients))]


def kill_at_random(
    product: Product, names: Sequence[str], count: int, pause_s: tuple[float, float], seed: int = 1
) -> Counter[str]:
    """SIGKILL to one process after another that works, each started again at once, as Docker does."""
    rng, kills = random.Random(seed), Counter[str]()
    for _ in range(count):
        time.sleep(rng.uniform(*pause_s))
        while not (up := [name for name in names if product.is_up(name)]):
            time.sleep(0.2)
        name = rng.choice(up)
        product.restart(name)
        kills[name.partition("-")[0]] += 1
    return kills


def run(
    product: Product, *, workers: int, kills: int, pause_s: tuple[float, float], tokens: int, sweeps: int
) -> Killed:
    """`product` has web processes; workers with rows, and Celery for `sweeps`, are added here.

    There are as many visitors as the workers have rows together, and kills begin once a worker has all its
    rows taken.
    """
    for number in range(workers):
        product.add_paced(f"worker-{number}", TOK_S, MONOLANE_ROWS=str(ROWS))
    victims = [name for name in product.services if name != "beat"]
    if sweeps:
        product.add_celery()
        product.add_beat()
        victims.append("celery")
    product.wait_for_workers(workers)
    text = text_of(product, tokens)
    if sweeps:
        product.manage("shell", "-c", _SWEEPS.format(count=sweeps))
    found = Killed(Tally())
    work = visitors(product, found.tally, text, tokens, pages=3 * workers, clients=workers)
    with at_the_same_time(*work, patience_s=180):
        wait_until(lambda: _count_in_flight(product, found) == ROWS)
        found.kills = kill_at_random(product, victims, kills, pause_s)
        product.wait_for_web()
    _wait_for_rows(product, found)
    if sweeps:
        _wait_for_sweeps(product, found)
    return found


def _count_in_flight(product: Product, found: Killed) -> int:
    with suppress(EngineError), Client(product.redis_url) as client:
        found.in_flight = max([found.in_flight, *(worker.in_hand for worker in client.workers())])
    return found.in_flight


def _wait_for_rows(product: Product, found: Killed) -> None:
    began = time.monotonic()

    def running() -> int:
        [(count,)] = product.query("select count(*) from playground_generation where state = 'running'")
        return int(count)

    while running() and time.monotonic() - began < ROWS_MUST_END_S:
        time.sleep(0.5)
    found.rows_ended_s = time.monotonic() - began
    found.rows_running = running()


def _wait_for_sweeps(product: Product, found: Killed) -> None:
    began = time.monotonic()
    active = "select count(*) from dashboard_sweeprun where state in ('queued', 'running')"
    wait_until(lambda: product.query(active) == [(0,)], SWEEPS_MUST_END_S, every_s=1.0)
    found.sweeps_ended_s = time.monotonic() - began
    [(found.points,)] = product.query("select count(*) from dashboard_point where current")
    [(found.measured,)] = product.query(
        "select count(*) from dashboard_measurement where point_id in"
        " (select id from dashboard_point where state = 'finished' and current)"
    )
    failed = product.query("select error_code || ': ' || error from dashboard_point where state = 'failed'")
    found.failed = Counter(error for (error,) in failed)
    [(stored,)] = product.query("select count(*) from dashboard_measurement where point_id is not null")
    assert stored == found.measured, f"{stored} measurements of {found.measured} finished points"


def _requests(text: str, tokens: int) -> Iterator[Asked]:
    return itertools.repeat(({"model": "words", "prompt": "to", "max_tokens": tokens}, text))


_SWEEPS = """
from dashboard.models import Sweep, Trigger
from dashboard.sweeps.services import start_sweep
matrix = {{"model": ["random:tiny-llama"], "backend": ["numpy"]}}
matrix |= {{"context": [8, 16, 24, 32, 40], "tokens": [16, 32]}}
for number in range({count}):
    sweep = Sweep.objects.create(name=f"faults-{{number}}", matrix=matrix, repeats=5)
    start_sweep(sweep=sweep, trigger=Trigger.SHELL)
"""
