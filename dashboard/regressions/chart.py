"""The points around a regression: the baseline, its threshold, and which points lie beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.charts.scale import LinearScale, Tick
from dashboard.models import Measurement, Regression
from dashboard.regressions.rule import WATCHED, loss

WIDTH, HEIGHT = 720.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 12.0, 12.0, 28.0


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    beyond: bool
    title: str


@dataclass(frozen=True, slots=True)
class RegressionChart:
    """One dot a measurement, evenly spaced in their order; lengths in units of the view box."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    band_y: float
    band_width: float
    band_height: float
    baseline_y: float
    levels: tuple[Tick, ...]
    line: str
    dots: tuple[Dot, ...]
    first: str
    last: str


def regression_chart(regression: Regression, points: Sequence[Measurement]) -> RegressionChart | None:
    """None without points."""
    if not points:
        return None
    values = [float(getattr(point, regression.metric)) for point in points]
    margin = regression.baseline * regression.threshold
    floor, ceiling = max(0.0, regression.baseline - margin), regression.baseline + margin
    low, high = min(*values, floor), max(*values, ceiling)
    room = (high - low) * 0.06

    y = LinearScale(low - room, high + room, HEIGHT - BOTTOM, TOP)
    step = (WIDTH - LEFT - RIGHT - 20) / max(1, len(values) - 1)
    better = WATCHED[regression.metric]
    dots = tuple(
        Dot(
            round(LEFT + 10 + index * step, 2),
            y(value),
            loss(value, regression.baseline, better) > regression.threshold,
            f"{point.created:%Y-%m-%d %H:%M}: {value:,.6g} ({point.git_sha[:9] or 'no commit'})",
        )
        for index, (point, value) in enumerate(zip(points, values, strict=True))
    )
    levels = (high, regression.baseline, low) if low < regression.baseline < high else (high, low)
    return RegressionChart(
        WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM,
        band_y=y(ceiling),
        band_width=WIDTH - RIGHT - LEFT,
        band_height=round(y(floor) - y(ceiling), 2),
        baseline_y=y(regression.baseline),
        levels=tuple(Tick(y(value), f"{value:,.4g}") for value in levels),
        line=" ".join(f"{dot.x:g},{dot.y:g}" for dot in dots),
        dots=dots,
        first=f"{points[0].created:%Y-%m-%d}",
        last=f"{points[-1].created:%Y-%m-%d}",
    )  # fmt: skip
