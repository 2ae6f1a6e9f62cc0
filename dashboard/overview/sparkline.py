"""A trend as small as a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 110.0
HEIGHT = 28.0
_EDGE = 3.0


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`points` as SVG writes them, and the place of the last one."""

    points: str
    x: float
    y: float
    first: float
    last: float
    count: int
    width: float = WIDTH
    height: float = HEIGHT


def sparkline(values: Sequence[float]) -> Sparkline | None:
    """`values` from left to right between their own least and greatest; None if there are none.

    A change of less than 2 % does not fill the height: noise must not look like news.
    """
    if not values:
        return None
    low, high = min(values), max(values)
    middle, half = (low + high) / 2, max((high - low) / 2, 0.01 * abs(high), 1e-12)
    step = (WIDTH - 2 * _EDGE) / max(1, len(values) - 1)

    def place(index: int) -> tuple[float, float]:
        x = WIDTH - _EDGE - (len(values) - 1 - index) * step
        y = HEIGHT / 2 - (values[index] - middle) / half * (HEIGHT / 2 - _EDGE)
        return round(x, 2), round(y, 2)

    places = [place(i) for i in range(len(values))]
    return Sparkline(
        " ".join(f"{x:g},{y:g}" for x, y in places), *places[-1], values[0], values[-1], len(values)
    )
