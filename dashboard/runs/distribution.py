"""Inter-token latencies as a histogram and as a cumulative curve, drawn by the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dashboard.charts.scale import LinearScale, Scale, Tick
from engine.measuring.statistics import cluster_interval, quantile, samples_needed

WIDTH = 480.0
HEIGHT = 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 8.0, 28.0
_BINS = (12, 60)
_TAIL = 0.995
"""The axis ends at this quantile where a longer tail would squeeze the rest; what is beyond is counted."""
PERCENTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_CURVE_POINTS = 240


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True, slots=True)
class Percentile:
    """A quantile in microseconds and its 95 % interval over repeats; None where too few bound it."""

    name: str
    value: float | None
    interval: tuple[float, float] | None
    needed: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """Both drawings share the axis of microseconds. Lengths are in units of the view box."""

    n: int
    bars: tuple[Bar, ...]
    beyond: int
    """Gaps longer than the axis shows."""
    longest: float
    curve: str
    marks: tuple[Tick, ...]
    """p50, p90 and p99 on the curve's axis, as far as n bounds them."""
    ticks: tuple[Tick, ...]
    counts: tuple[Tick, ...]
    """Ticks of the histogram's upright axis."""
    shares: tuple[Tick, ...]
    percentiles: tuple[Percentile, ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


def distribution(repeats: Sequence[Sequence[float]]) -> Distribution | None:
    """Of the gaps between tokens of each repeat, microseconds; None if there are none."""
    gaps = list(chain.from_iterable(repeats))
    if not gaps:
        return None
    values = np.sort(np.asarray(gaps, dtype=np.float64))
    low, high = _range(values)
    shown = values[values <= high]
    x = LinearScale(low, high, _LEFT, WIDTH - _RIGHT)
    edges = _edges(shown, low, high)
    counts, _ = np.histogram(shown, edges)

    percentiles = tuple(_percentile(gaps, repeats, q) for q in PERCENTILES)
    marks = tuple(
        Tick(x(p.value), p.name)
        for p in percentiles
        if p.name in ("p50", "p90", "p99") and p.value is not None and p.value <= high
    )
    return Distribution(
        n=len(values),
        bars=tuple(_bars(counts, edges, x)),
        beyond=len(values) - len(shown),
        longest=float(values[-1]),
        curve=_curve(values, high, x),
        marks=marks,
        ticks=x.ticks(),
        counts=LinearScale(0.0, float(max(1, counts.max())), HEIGHT - _BOTTOM, _TOP).ticks(3),
        shares=tuple(Tick(_height(q), f"{q:.0%}") for q in (0.0, 0.25, 0.5, 0.75, 1.0)),
        percentiles=percentiles,
    )


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    """The axis: from the shortest gap to the longest, or to the _TAIL quantile if the rest is far away."""
    low, top = float(values[0]), float(values[-1])
    tail = float(np.quantile(values, _TAIL))
    middle = float(np.median(values))
    high = tail if top - middle > 3.0 * (tail - middle) and tail > low else top
    margin = (high - low) * 0.02 or max(abs(high) * 0.01, 1e-6)
    return low - margin, high + margin


def _edges(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Bins by Freedman and Diaconis (1981), not fewer and not more than a reader can use."""
    spread = float(np.subtract(*np.quantile(values, (0.75, 0.25))))
    width = 2.0 * spread / len(values) ** (1 / 3)
    wanted = int(np.ceil((high - low) / width)) if width > 0.0 else _BINS[0]
    return np.linspace(low, high, min(max(wanted, _BINS[0]), _BINS[1]) + 1)


def _bars(counts: NDArray[np.int64], edges: NDArray[np.float64], x: Scale) -> list[Bar]:
    most = max(1, int(counts.max()))
    found = []
    for count, start, end in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            y = _height(count / most)
            label = f"{count} gap{'' if count == 1 else 's'} of {start:,.1f} to {end:,.1f} µs"
            found.append(
                Bar(x(start), y, round(max(x(end) - x(start) - 0.6, 0.4), 2), HEIGHT - _BOTTOM - y, label)
            )
    return found


def _curve(values: NDArray[np.float64], high: float, x: Scale) -> str:
    """The share of gaps that are at most so long, as points of an SVG line."""
    n = len(values)
    places = np.unique(np.linspace(0, n - 1, min(n, _CURVE_POINTS)).astype(int))
    points = [(x(float(values[i])), _height((i + 1) / n)) for i in places.tolist() if values[i] <= high]
    return " ".join(f"{px:g},{py:g}" for px, py in [(points[0][0], _height(0.0)), *points])


_height = LinearScale(0.0, 1.0, HEIGHT - _BOTTOM, _TOP)
"""Of a share."""


def _percentile(gaps: Sequence[float], repeats: Sequence[Sequence[float]], q: float) -> Percentile:
    name = f"p{q * 100:g}"
    return Percentile(name, quantile(gaps, q), cluster_interval(repeats, q), samples_needed(q))
