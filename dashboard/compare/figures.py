"""The figures of two or more runs, each with its change from the first run and that change's interval.

Intervals are bootstraps of quotients of medians (of 99th percentiles, for p99) that draw whole repeats again;
a run of fewer than LEAST_SAMPLES repeats has none, and no verdict. Each run is drawn with a seed of its own
document, so that a comparison says the same each time it is opened, different runs are drawn independently,
and a run compared with itself differs by exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from engine.measuring.measurement import Measurement
from engine.measuring.statistics import cluster_quantiles, interval_needs, ratio_interval


@dataclass(frozen=True, slots=True)
class Figure:
    """What is compared: its value, and the raw samples, by repeat, that its `q`-quantile is of (if kept)."""

    title: str
    style: str
    """How the page writes it: "speed", "percent", "millis" or "micros"."""
    value: Callable[[Measurement], float | None]
    repeats: Callable[[Measurement], Sequence[Sequence[float]]]
    q: float = 0.5
    more_is_better: bool = True


def _each(samples: Sequence[float]) -> list[list[float]]:
    """One sample a repeat."""
    return [[sample] for sample in samples]


def _utilised(result: Measurement) -> list[list[float]]:
    """MBU of each repeat: the bytes and the bandwidth are the run's, so it follows the speed."""
    if result.mbu.measured is None:
        return []
    return _each([s * result.mbu.measured / result.decode.median for s in result.decode.samples])


FIGURES: tuple[Figure, ...] = (
    Figure("Decode speed, tok/s", "speed", lambda r: r.decode.median, lambda r: _each(r.decode.samples)),
    Figure("MBU, of measured bandwidth", "percent", lambda r: r.mbu.measured, _utilised),
    Figure(
        "Time to first token, p50", "millis", lambda r: r.ttft_ms.p50, lambda r: _each(r.samples.ttft_ms),
        more_is_better=False,
    ),
    Figure(
        "Between tokens, p50", "micros", lambda r: r.itl_us.p50, lambda r: r.samples.itl_us,
        more_is_better=False,
    ),
    Figure(
        "Between tokens, p99", "micros", lambda r: r.itl_us.p99, lambda r: r.samples.itl_us, 0.99,
        more_is_better=False,
    ),
    Figure(
        "Prefill speed, tok/s", "speed", lambda r: r.prefill.tok_s,
        lambda r: _each(r.samples.prefill_tok_s),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One run's figure. `change` is relative to the first run; None without one, or in the first column.

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
    figure: Figure
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A run to compare: its result, and the digest of its document, which seeds its draws."""

    result: Measurement
    digest: str


def compare(runs: Sequence[Compared]) -> list[Row]:
    """A row for each of FIGURES, a cell for each run; the first run is what the others are compared with."""
    return [Row(figure, _cells(figure, place, runs)) for place, figure in enumerate(FIGURES)]


def _cells(figure: Figure, place: int, runs: Sequence[Compared]) -> tuple[Cell, ...]:
    base = figure.value(runs[0].result)
    drawn = [_draws(figure, place, run) for run in runs]
    counts = [len(figure.repeats(run.result)) for run in runs]
    cells = []
    for number, run in enumerate(runs):
        value, n = figure.value(run.result), counts[number]
        if number == 0 or base is None or value is None:
            cells.append(Cell(value, n))
            continue
        first, own = drawn[0], drawn[number]
        interval = None if first is None or own is None else ratio_interval(first, own, (counts[0], n))
        cells.append(Cell(value, n, value / base - 1.0, interval, _verdict(figure, interval)))
    return tuple(cells)


def _draws(figure: Figure, place: int, run: Compared) -> NDArray[np.float64] | None:
    repeats = [repeat for repeat in figure.repeats(run.result) if repeat]
    samples = list(chain.from_iterable(repeats))
    if len(samples) < interval_needs(figure.q) or figure.value(run.result) is None or min(samples) <= 0:
        return None
    key = int(run.digest[:32], 16) ^ place
    return cluster_quantiles(repeats, figure.q, np.random.Generator(np.random.Philox(key=key)))


def _verdict(figure: Figure, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    low, high = interval
    if low <= 0.0 <= high:
        return "no clear change"
    return "better" if (low > 0.0) == figure.more_is_better else "worse"
