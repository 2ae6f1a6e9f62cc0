"""When a speed counts as lost: its level lies below the best level that it had, by more than noise.

Levels and steps are those of engine.measuring.change_points, which History draws. The baseline is the best
level since somebody last accepted one: it stays where it is however slowly the speed sinks. A run that
somebody pinned is a second baseline beside it. The threshold is
the configuration's own, if somebody set one; else LEAST, or NOISES standard deviations of the difference of
two such levels where that is more. A loss too slow for a step counts as a drift. No database here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from dashboard.measurements.metrics import METRICS
from dashboard.models import Label
from engine.measuring.change_points import (
    DRIFT,
    FIRST_BASE,
    LEAST,
    LEVEL,
    NOISE_POINTS,
    Step,
    drift,
    noise,
    steps,
)

HISTORY = 400
"""Newest points that are looked at: more than a year of nights."""
NEEDED = FIRST_BASE + LEVEL
NOISES = 3.0
RECENT = 10
"""Points for which a step to the better is called an improvement."""

WATCHED = {name: 1 if metric.more_is_better else -1 for name, metric in METRICS.items() if metric.watched}
"""The metrics that are watched: 1 where more is better, -1 where less is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`baseline` in the metric's unit; `change` of the newest value and `threshold` relative to it.

    All three are None while there are fewer than NEEDED points. Of a regression, `first_bad` is the index of
    the first point after the baseline's level.
    """

    label: Label
    n: int
    baseline: float | None = None
    threshold: float | None = None
    change: float | None = None
    first_bad: int | None = None


def judge(
    values: Sequence[float], better: int, threshold: float | None = None, reference: float | None = None
) -> Verdict:
    """What `values` (oldest first, all above 0) say; `better` is that of WATCHED.

    `reference` is the value of a pinned run, which the present level is held against first.
    """
    if len(values) < NEEDED:
        return Verdict(Label.INSUFFICIENT, len(values))
    found = steps(values)
    edges = [0, *(step.at for step in found), len(values)]
    levels = [median(values[a:b]) for a, b in pairwise(edges)]
    newest = edges[-1] - edges[-2]

    def limit_of(baseline: float, size: int) -> float:
        return threshold if threshold is not None else _threshold(values, baseline, (size, newest))

    if reference is not None:
        limit = limit_of(reference, 1)
        if loss(levels[-1], reference, better) > limit:
            first = _first_beyond(levels, edges, reference, limit, better)
            return _regression(values, reference, limit, first)
    best = max(range(len(levels)), key=lambda i: better * levels[i])
    limit = limit_of(levels[best], edges[best + 1] - edges[best])
    if loss(levels[-1], levels[best], better) > limit:
        return _regression(values, levels[best], limit, edges[best + 1])
    slow = drift(values, more_is_better=better > 0)
    if slow is not None and (threshold is None or loss(slow.newest, slow.best, better) > threshold):
        return _regression(values, slow.best, threshold or DRIFT, slow.since)
    label = _calm(values, found, levels[-1], better, limit)
    return Verdict(label, len(values), levels[-1], limit, values[-1] / levels[-1] - 1)


def level(values: Sequence[float]) -> float:
    """The median since the last step: what a regression must recover to."""
    found = steps(values)
    return found[-1].after if found else median(values)


def loss(value: float, baseline: float, better: int) -> float:
    """How much worse than `baseline`, relative to it; below 0 if it is better."""
    return better * (baseline - value) / baseline


def has_recovered(values: Sequence[float], baseline: float, threshold: float, better: int) -> bool:
    """Whether the level is back within the threshold of the baseline that a regression began at."""
    return len(values) >= NEEDED and loss(level(values), baseline, better) <= threshold


def _regression(values: Sequence[float], baseline: float, limit: float, first_bad: int) -> Verdict:
    change = values[-1] / baseline - 1
    return Verdict(Label.REGRESSION, len(values), baseline, limit, change, first_bad)


def _first_beyond(
    levels: Sequence[float], edges: Sequence[int], reference: float, limit: float, better: int
) -> int:
    """Where the levels began to lie beyond the limit without a break; the second point at the earliest."""
    first = len(levels) - 1
    while first > 0 and loss(levels[first - 1], reference, better) > limit:
        first -= 1
    return max(1, edges[first])


def _threshold(values: Sequence[float], baseline: float, sizes: tuple[int, int]) -> float:
    """What the levels of so many points may differ by chance, relative to the baseline; at least LEAST."""
    of_levels = noise(values[-NOISE_POINTS:]) * math.sqrt(sum(1.0 / size for size in sizes))
    return max(LEAST, NOISES * of_levels / baseline)


def _calm(values: Sequence[float], found: Sequence[Step], now: float, better: int, limit: float) -> Label:
    spread = NOISES * noise(values[-NOISE_POINTS - 1 : -1]) / now
    if loss(values[-1], now, better) > max(limit, spread):
        return Label.SUSPICIOUS
    if found and better * found[-1].change > 0 and len(values) - found[-1].at <= RECENT:
        return Label.IMPROVEMENT
    return Label.STEADY
