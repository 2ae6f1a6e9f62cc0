"""Scales and sparklines as geometry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.overview import scale as scales
from dashboard.overview.scale import Mark, scale
from dashboard.overview.sparkline import HEIGHT, WIDTH, sparkline

speeds = st.floats(1e-3, 1e6)


@given(speeds, st.lists(speeds, max_size=4))
def test_bar_and_marks_stand_on_one_scale_from_zero(tok_s: float, others: list[float]) -> None:
    found = scale(tok_s, [Mark("peer", other, "a peer") for other in others])
    top = max([tok_s, *others])
    room = scales.WIDTH - 6
    for length, speed in [(found.bar, tok_s), *((m.x, m.mark.tok_s) for m in found.marks)]:
        assert length == pytest.approx(room * speed / top, abs=0.01)


def test_sparkline_ends_at_the_newest_value() -> None:
    line = sparkline([100.0, 150.0, 120.0])
    assert line is not None
    assert line.points.endswith(f"{line.x:g},{line.y:g}")
    assert (line.first, line.last, line.count) == (100.0, 120.0, 3)


@given(st.lists(speeds, min_size=1, max_size=40))
def test_sparkline_stays_in_its_box(values: list[float]) -> None:
    line = sparkline(values)
    assert line is not None
    for point in line.points.split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT


def test_noise_below_a_percent_does_not_fill_the_height() -> None:
    line = sparkline([1000.0, 1000.5])
    assert line is not None
    ys = [float(p.split(",")[1]) for p in line.points.split()]
    assert max(ys) - min(ys) < 1


def test_no_value_has_no_line() -> None:
    assert sparkline([]) is None
