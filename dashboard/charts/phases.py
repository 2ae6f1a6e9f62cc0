"""Geometry of the charts that the server draws as SVG, so that they need no script and no inline style.

Lengths are in units of the view box; the page scales it. Colours and fonts belong to the style sheet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.charts.scale import LinearScale, Tick
from engine.timings import PhaseTime, in_order

WIDTH = 720.0
_LABEL = 84.0
_VALUE = 96.0
_ROW = 26.0
_BAR = 16.0
KINDS = ("work", "wait_local", "wait_peer")


@dataclass(frozen=True, slots=True)
class Segment:
    kind: str
    x: float
    width: float
    us: float


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase: its three parts as segments of a bar, and as microseconds for the table."""

    name: str
    y: float
    text_y: float
    value_x: float
    time: PhaseTime
    total: float
    share: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class PhaseChart:
    width: float
    height: float
    bar: float
    label_x: float
    rows: tuple[PhaseRow, ...]
    total: float
    """Microseconds a token, all phases."""
    sums: PhaseTime
    """The same by kind."""


def phase_chart(phases: Mapping[str, PhaseTime]) -> PhaseChart | None:
    """Bars of `phases` in their order within a token; None if nothing was recorded."""
    names = in_order(phases)
    totals = {n: sum(getattr(phases[n], kind) for kind in KINDS) for n in names}
    longest, total = max(totals.values(), default=0.0), sum(totals.values())
    if longest <= 0:
        return None
    scale = (WIDTH - _LABEL - _VALUE) / longest
    rows = []
    for index, name in enumerate(names):
        y = index * _ROW + (_ROW - _BAR) / 2
        parts = segments(phases[name], scale, _LABEL)
        end = parts[-1].x + parts[-1].width if parts else _LABEL
        rows.append(
            PhaseRow(
                name, y, y + _BAR * 0.75, end + 6, phases[name], totals[name], totals[name] / total, parts
            )
        )
    sums = PhaseTime(*(sum(getattr(phases[n], kind) for n in names) for kind in KINDS))
    return PhaseChart(WIDTH, len(rows) * _ROW, _BAR, _LABEL - 8, tuple(rows), total, sums)


def segments(time: PhaseTime, scale: float, x: float) -> tuple[Segment, ...]:
    """The parts of `time` one behind the other from `x` on, `scale` units a microsecond."""
    found = []
    for kind in KINDS:
        us = getattr(time, kind)
        if us > 0:
            found.append(Segment(kind, round(x, 2), round(us * scale, 2), us))
            x += us * scale
    return tuple(found)


@dataclass(frozen=True, slots=True)
class SampleStrip:
    """Raw samples on one axis, the median as a line, its 95 % interval as a band."""

    width: float
    height: float
    axis_end: float
    band_x: float
    band_width: float
    median_x: float
    dots: tuple[Tick, ...]
    ticks: tuple[Tick, ...]


def sample_strip(samples: Sequence[float], median: float, ci: tuple[float, float]) -> SampleStrip:
    """`samples` in their own unit; the axis spans what there is to see, with a margin."""
    low, high = min(*samples, ci[0], median), max(*samples, ci[1], median)
    margin = (high - low) * 0.08 or abs(high) * 0.01 or 1.0
    x = LinearScale(low - margin, high + margin, 12, WIDTH - 12)
    return SampleStrip(
        WIDTH,
        72.0,
        WIDTH - 12,
        x(ci[0]),
        round(max(x(ci[1]) - x(ci[0]), 1.0), 2),
        x(median),
        tuple(Tick(x(s), f"{s:,.2f}") for s in samples),
        x.ticks(),
    )
