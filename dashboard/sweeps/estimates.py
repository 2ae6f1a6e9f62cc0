"""How long points take, by what points like them took before."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any, NamedTuple

from dashboard.models import ACTIVE, Point, State, SweepRun
from dashboard.sweeps.matrix import AXES, PointSpec

RECENT = 1000
"""How many finished points an estimate looks back over: enough for the newest of each kind, and quick."""
Kind = tuple[Any, ...]


class Estimate(NamedTuple):
    """Seconds that `known` of `total` points will take; the rest has nothing to go by."""

    seconds: float
    known: int
    total: int


def estimate(specs: Sequence[PointSpec]) -> Estimate:
    """How long a sweep over `specs` will take. One query."""
    kinds = [_kind(list(spec.columns.values())) for spec in specs]
    known = _means(_recent(kinds))
    times = [known[kind] for kind in kinds if kind in known]
    return Estimate(sum(times), len(times), len(specs))


def estimate_remaining(runs: Iterable[SweepRun], now: datetime) -> dict[int, Estimate]:
    """What each run that has not ended still has before it, by its key. Two queries.

    A point of a kind that never ran is expected to take what the run's own points took on the mean.
    """
    keys = [run.pk for run in runs]
    points = list(
        Point.objects.filter(run__in=keys, current=True, state__in=ACTIVE).values_list(
            "run_id", "started", *AXES
        )
    )
    recent = _recent([_kind(row[2:]) for row in points])
    by_kind = _means(recent)
    own: dict[int, list[float]] = defaultdict(list)
    for run, _, seconds in recent:
        own[run].append(seconds)
    found = dict.fromkeys(keys, Estimate(0.0, 0, 0))
    for run, started, *kind in points:
        expected = by_kind.get(_kind(kind), fmean(own[run]) if own[run] else None)
        found[run] = _add(found[run], expected, (now - started).total_seconds() if started else 0.0)
    return found


def _add(so_far: Estimate, expected: float | None, spent: float) -> Estimate:
    if expected is None:
        return so_far._replace(total=so_far.total + 1)
    left = max(0.0, expected - spent)
    return Estimate(so_far.seconds + left, so_far.known + 1, so_far.total + 1)


def _recent(kinds: Sequence[Kind]) -> list[tuple[int, Kind, float]]:
    """Run, kind and seconds of the newest finished points that share a model and a backend with `kinds`."""
    if not kinds:
        return []
    rows = (
        Point.objects.filter(
            state=State.FINISHED,
            model__in={kind[0] for kind in kinds},
            backend__in={kind[1] for kind in kinds},
            started__isnull=False,
            ended__isnull=False,
        )
        .order_by("-pk")
        .values_list("run_id", "started", "ended", *AXES)[:RECENT]
    )
    return [
        (run, _kind(kind), max(0.0, (ended - started).total_seconds())) for run, started, ended, *kind in rows
    ]


def _means(recent: Iterable[tuple[int, Kind, float]]) -> Mapping[Kind, float]:
    times: dict[Kind, list[float]] = defaultdict(list)
    for _, kind, seconds in recent:
        times[kind].append(seconds)
    return {kind: fmean(of_kind) for kind, of_kind in times.items()}


def _kind(columns: Sequence[Any]) -> Kind:
    """What makes two points take the same time; a sampling as text, since it cannot be a key."""
    *rest, sampling = columns
    return (*rest, json.dumps(sampling, sort_keys=True))
