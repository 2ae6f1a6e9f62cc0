"""The figures of two or more runs, each with its change from the first run and that change's interval.

Intervals are bootstraps of quotients of medians (of 99th percentiles, for p99) that draw whole repeats again,
and reach zero where repeats exchanged between the runs differ as much (engine.measuring.statistics); a run of
fewer than LEAST_SAMPLES repeats has none, and no verdict. Each run is drawn with a seed of its own document,
so that a comparison says the same each time it is opened, different runs are drawn independently, and a run
compared with itself differs by exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dashboard.measurements.metrics import COMPARED, Metric
from engine.measuring.measurement import Measurement
from engine.measuring.statistics import change_interval, cluster_quantiles, interval_needs


@dataclass(frozen=True, slots=True)
class Cell:
    """One run's metric. `change` is relative to the first run; None without one, or in the first column.

    `n` counts repeats. `interval` holds the change's 95 % interval; None where one of the runs has fewer than
    LEAST_SAMPLES, or too few raw samples.
    """

    value: float | None
    n: int
    change: float | None = None
    interval: tuple[float, float] | None = None
    verdict: str = ""
    """"better", "worse", or "no clear change" where the interval holds zero; empty without an interval."""


@dataclass(frozen=True, slots=True)
class Row:
    metric: Metric
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A run to compare: its result, and the digest of its document, which seeds its draws."""

    result: Measurement
    digest: str


def compare(runs: Sequence[Compared]) -> list[Row]:
    """A row for each of COMPARED, a cell for each run; the first run is what the others are compared with."""
    return [Row(metric, _cells(metric, place, runs)) for place, metric in enumerate(COMPARED)]


def _cells(metric: Metric, place: int, runs: Sequence[Compared]) -> tuple[Cell, ...]:
    base = metric.of(runs[0].result)
    drawn = [_draws(metric, place, run) for run in runs]
    counts = [len(metric.repeats(run.result)) for run in runs]
    cells = []
    for number, run in enumerate(runs):
        value, n = metric.of(run.result), counts[number]
        if number == 0 or base is None or value is None:
            cells.append(Cell(value, n))
            continue
        interval = _interval(metric, drawn[0], drawn[number])
        cells.append(Cell(value, n, value / base - 1.0, interval, _verdict(metric, interval)))
    return tuple(cells)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A run's repeats that hold samples, and draws of their quantile."""

    repeats: Sequence[Sequence[float]]
    quantiles: NDArray[np.float64]


def _draws(metric: Metric, place: int, run: Compared) -> _Drawn | None:
    repeats = [repeat for repeat in metric.repeats(run.result) if repeat]
    samples = list(chain.from_iterable(repeats))
    if len(samples) < interval_needs(metric.q) or metric.of(run.result) is None or min(samples) <= 0:
        return None
    key = int(run.digest[:32], 16) ^ place
    rng = np.random.Generator(np.random.Philox(key=key))
    return _Drawn(repeats, cluster_quantiles(repeats, metric.q, rng))


def _interval(metric: Metric, base: _Drawn | None, own: _Drawn | None) -> tuple[float, float] | None:
    if base is None or own is None:
        return None
    return change_interval(base.repeats, own.repeats, metric.q, (base.quantiles, own.quantiles))


def _verdict(metric: Metric, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    low, high = interval
    if low <= 0.0 <= high:
        return "no clear change"
    return "better" if (low > 0.0) == metric.more_is_better else "worse"
