"""A generation's pace as the path of an SVG picture: one dash for each stretch of the decode."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT = 480, 48
"""The picture's units; its template says the same."""
_WIDEST = 8.0
_FILLED = 0.72
"""How much of its room a dash takes."""


def pace_path(rates: Sequence[float], peak: float) -> str:
    """Closed bars from the bottom up, one of `peak` as high as the picture; "" without any rate.

    Pictures that are compared share a peak.
    """
    if not rates:
        return ""
    pitch = min(_WIDEST, WIDTH / len(rates))
    peak = max(peak, 1.0)
    return "".join(
        _bar(number * pitch, pitch * _FILLED, HEIGHT * rate / peak) for number, rate in enumerate(rates)
    )


def _bar(x: float, width: float, height: float) -> str:
    return f"M{x:.1f} {HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z"
