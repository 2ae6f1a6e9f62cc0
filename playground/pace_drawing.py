"""A generation's pace as the path of an SVG picture: one dash for each stretch of the decode."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT = 480, 48
"""The picture's units; its template says the same."""
_WIDEST = 8.0
"""The most room of a dash that it fills."""
_FILLED = 0.72
"""How much of that room a dash takes."""


def pace_path(rates: Sequence[float], stretch_ms: float, peak: float, span_ms: float) -> str:
    """Closed bars from the bottom up, one a stretch; "" without any rate.

    A rate of `peak` is as high as the picture, and `span_ms` as wide: pictures that are compared share both.
    """
    if not rates:
        return ""
    pitch = WIDTH * stretch_ms / span_ms
    peak = max(peak, 1.0)
    width = min(pitch, _WIDEST) * _FILLED
    return "".join(_bar(number * pitch, width, HEIGHT * rate / peak) for number, rate in enumerate(rates))


def _bar(x: float, width: float, height: float) -> str:
    return f"M{x:.1f} {HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z"
