"""The queue of each device with the times that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dashboard.models import SweepRun
from dashboard.sweeps.devices import Line, lines
from dashboard.sweeps.estimates import Estimate, estimate_remaining


@dataclass(frozen=True, slots=True)
class Ahead:
    """A queued run, the run that it waits for, and the seconds until its turn: None if nobody knows."""

    run: SweepRun
    place: int
    behind: SweepRun | None
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class Queue:
    device: str
    running: SweepRun | None
    left: Estimate | None
    """What `running` still has before it."""
    waiting: tuple[Ahead, ...]


def queues(now: datetime) -> list[Queue]:
    """Every device that is held or wanted. Four queries."""
    found = lines()
    runs = {run.pk: run for line in found for run in _runs(line)}
    left = estimate_remaining(runs.values(), now)
    return [_with_estimates(line, left) for line in found]


def place_of(run: SweepRun, found: Sequence[Queue]) -> Ahead | None:
    """Where a queued run stands: the longest of its waits, if it needs several devices."""
    places = [ahead for queue in found for ahead in queue.waiting if ahead.run.pk == run.pk]
    return max(places, key=lambda ahead: (ahead.place, ahead.wait_s or 0.0), default=None)


def _runs(line: Line) -> list[SweepRun]:
    return [*([line.running] if line.running else []), *(waiting.run for waiting in line.waiting)]


def _with_estimates(line: Line, left: dict[int, Estimate]) -> Queue:
    before = _seconds(left[line.running.pk]) if line.running else 0.0
    waiting = []
    for one in line.waiting:
        waiting.append(Ahead(one.run, one.place, one.behind, before))
        own = _seconds(left[one.run.pk])
        before = None if before is None or own is None else before + own
    return Queue(line.device, line.running, left[line.running.pk] if line.running else None, tuple(waiting))


def _seconds(estimate: Estimate) -> float | None:
    """None if a point of it has nothing to go by: half an estimate is no estimate."""
    return estimate.seconds if estimate.known == estimate.total else None
