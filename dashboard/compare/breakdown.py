"""Where a token's time goes in several runs: bars on one scale, and the differences in microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.charts.phases import KINDS, Segment, segments
from engine.timings import PhaseTime, in_order

WIDTH = 720.0
_LABEL = 84.0
_VALUE = 96.0
_BAR = 12.0
_GAP = 3.0
_ROW_GAP = 12.0


@dataclass(frozen=True, slots=True)
class Part:
    """One run's share of a phase, microseconds a token. `change`: the total's difference to the first run."""

    time: PhaseTime
    total: float
    change: float
    by_kind: tuple[float, ...]
    """The difference to the first run: work, wait_local, wait_peer."""
    y: float
    value_x: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class PhaseDifference:
    name: str
    y: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Breakdown:
    rows: tuple[PhaseDifference, ...]
    totals: tuple[float, ...]
    """All phases of each run, microseconds a token."""
    changes: tuple[float, ...]
    height: float
    width: float = WIDTH
    label_x: float = _LABEL - 8
    bar: float = _BAR


def breakdown(runs: Sequence[Mapping[str, PhaseTime]]) -> Breakdown | None:
    """The phases of each run; None unless every run recorded some."""
    if not all(runs) or not runs:
        return None
    names = in_order(name for run in runs for name in run)
    longest = max(_total(time) for run in runs for time in run.values())
    if longest <= 0:
        return None
    scale = (WIDTH - _LABEL - _VALUE) / longest
    row = len(runs) * (_BAR + _GAP) + _ROW_GAP
    rows = tuple(
        _phase(name, [run.get(name, PhaseTime(0.0)) for run in runs], i * row, scale)
        for i, name in enumerate(names)
    )
    totals = tuple(sum(_total(time) for time in run.values()) for run in runs)
    return Breakdown(rows, totals, tuple(t - totals[0] for t in totals), len(names) * row)


def _phase(name: str, times: Sequence[PhaseTime], y: float, scale: float) -> PhaseDifference:
    first = times[0]
    parts = tuple(
        Part(
            time,
            _total(time),
            _total(time) - _total(first),
            tuple(getattr(time, kind) - getattr(first, kind) for kind in KINDS),
            y + number * (_BAR + _GAP),
            _LABEL + _total(time) * scale + 6,
            segments(time, scale, _LABEL),
        )
        for number, time in enumerate(times)
    )
    return PhaseDifference(name, y, parts)


def _total(time: PhaseTime) -> float:
    return time.work + time.wait_local + time.wait_peer
