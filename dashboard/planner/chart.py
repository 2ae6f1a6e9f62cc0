"""Geometry of the roofline: tokens a second against bytes a token, both logarithmic.

A bandwidth is then a straight line falling to the right, a model is a vertical one, the launch limit is
level, and every measured speed is a dot below the line of its memory. Lengths are in units of the view box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.charts.scale import LogScale, Tick
from engine.measuring.roofline import ceiling

WIDTH, HEIGHT = 760.0, 430.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 206.0, 14.0, 44.0
COLOURS = 8
LABEL_GAP = 15.0
"""Labels at the right edge stand at least this far apart; a thin line leads to what they name."""


@dataclass(frozen=True, slots=True)
class Roof:
    """One memory: `gbs` is 10^9 bytes a second over all its devices."""

    name: str
    gbs: float
    here: bool = False
    """Whether it was measured here, rather than taken from its maker."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One speed to show: bytes a token, tokens a second, what it is, and the Roof it was measured under."""

    bytes: float
    tok_s: float
    title: str
    roof: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class RoofLine:
    name: str
    colour: int
    """1 to COLOURS: which of the style sheet's series."""
    dashed: bool
    """A colour that comes again is told apart by its dashes."""
    here: bool
    line: Line
    leader: Line
    ceiling: Place
    at_mbu: Place


@dataclass(frozen=True, slots=True)
class Place:
    x: float
    y: float
    title: str
    colour: int = 0
    """Of the roof that it belongs to; 0 if that is not drawn."""


@dataclass(frozen=True, slots=True)
class RooflineChart:
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    roofs: tuple[RoofLine, ...]
    model_x: float
    launch: Line | None
    measured: tuple[Place, ...]
    published: tuple[Place, ...]


def roofline_chart(
    token_bytes: float,
    roofs: Sequence[Roof],
    *,
    utilisation: float,
    launch_tok_s: float,
    measured: Sequence[Mark] = (),
    published: Sequence[Mark] = (),
) -> RooflineChart:
    """`roofs` with the model that reads `token_bytes` a token; `utilisation` (0 to 1) sets the second dot."""
    speeds = [ceiling(token_bytes, roof.gbs, utilisation=utilisation) for roof in roofs]
    marks = [*measured, *published]
    x = _pad([token_bytes, *(m.bytes for m in marks)], LEFT, WIDTH - RIGHT)
    tops = [ceiling(token_bytes, roof.gbs) for roof in roofs]
    y = _pad([*speeds, *tops, launch_tok_s, *(m.tok_s for m in marks)], HEIGHT - BOTTOM, TOP)
    lines = [_roof_line(roof, x, y) for roof in roofs]
    colours = {roof.name: _colour(index) for index, roof in enumerate(roofs)}
    label_y = _apart([line.y2 for line in lines], TOP + 6, HEIGHT - BOTTOM)
    return RooflineChart(
        WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM,
        x_ticks=x.ticks(_bytes),
        y_ticks=y.ticks(),
        roofs=tuple(
            RoofLine(
                roof.name,
                _colour(index),
                index >= COLOURS,
                roof.here,
                line,
                Line(line.x2, line.y2, WIDTH - RIGHT + 14, at),
                Place(x(token_bytes), y(top), f"{roof.name}: ceiling {top:,.0f} tok/s"),
                Place(x(token_bytes), y(speed), f"{roof.name}: {speed:,.0f} tok/s at {utilisation:.0%} MBU"),
            )
            for index, (roof, line, at, top, speed) in enumerate(
                zip(roofs, lines, label_y, tops, speeds, strict=True)
            )
        ),
        model_x=x(token_bytes),
        launch=Line(LEFT, y(launch_tok_s), WIDTH - RIGHT, y(launch_tok_s)),
        measured=tuple(
            Place(x(m.bytes), y(m.tok_s), m.title, colours.get(m.roof, 0)) for m in measured
        ),
        published=tuple(Place(x(m.bytes), y(m.tok_s), m.title) for m in published),
    )  # fmt: skip


def _colour(index: int) -> int:
    return index % COLOURS + 1


def _pad(values: Sequence[float], start: float, end: float) -> LogScale:
    return LogScale(min(values) / 1.8, max(values) * 1.8, start, end)


def _roof_line(roof: Roof, x: LogScale, y: LogScale) -> Line:
    """tok/s = bandwidth / bytes, cut to the plot."""
    left = max(x.low, roof.gbs * 1e9 / y.high)
    right = min(x.high, roof.gbs * 1e9 / y.low)
    return Line(x(left), y(roof.gbs * 1e9 / left), x(right), y(roof.gbs * 1e9 / right))


def _apart(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """`places` moved as little as keeps them LABEL_GAP apart between `top` and `bottom`, in their order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    found = list(places)
    at = top - LABEL_GAP
    for i in order:
        at = found[i] = max(places[i], at + LABEL_GAP)
    at = bottom + LABEL_GAP
    for i in reversed(order):
        at = found[i] = min(found[i], at - LABEL_GAP)
    return [round(place, 2) for place in found]


def _bytes(value: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size * 0.999:
            return f"{value / size:.10g}\N{NO-BREAK SPACE}{unit}"
    return f"{value:.10g}\N{NO-BREAK SPACE}B"
