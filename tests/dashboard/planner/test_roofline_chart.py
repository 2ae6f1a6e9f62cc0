"""Geometry of the roofline."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.planner.chart import LABEL_GAP, Mark, Roof, roofline_chart

sizes = st.floats(1e6, 1e12)
speeds = st.floats(1, 1e6)


def test_half_the_bandwidth_is_half_way_down_a_decade_like_any_other_half() -> None:
    chart = roofline_chart(
        1e9, [Roof("a", 4000), Roof("b", 2000), Roof("c", 1000)], utilisation=0.5, launch_tok_s=1e3
    )
    a, b, c = (roof.ceiling.y for roof in chart.roofs)
    assert b - a == pytest.approx(c - b, abs=0.02)
    assert chart.roofs[0].at_mbu.y == pytest.approx(b, abs=0.02)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=9), sizes, st.floats(0.001, 1), speeds)
def test_everything_lies_inside_the_plot_and_labels_never_overlap(
    gbs: list[float], token_bytes: float, utilisation: float, launch: float
) -> None:
    roofs = [Roof(f"r{i}", value) for i, value in enumerate(gbs)]
    marks = [Mark(token_bytes / 2, 10.0, "m")]
    chart = roofline_chart(token_bytes, roofs, utilisation=utilisation, launch_tok_s=launch, measured=marks)
    for roof in chart.roofs:
        for place in (roof.ceiling, roof.at_mbu):
            assert chart.left <= place.x <= chart.right
            assert chart.top <= place.y <= chart.bottom
        assert chart.left - 0.1 <= roof.line.x1 <= roof.line.x2 <= chart.right + 0.1
    labels = sorted(roof.leader.y2 for roof in chart.roofs)
    assert all(later - earlier >= LABEL_GAP - 0.02 for earlier, later in pairwise(labels))
    assert all(0 <= y <= chart.height for y in labels)


@given(st.floats(1, 1e6), sizes)
def test_a_measured_speed_at_the_ceiling_lies_on_its_line(gbs: float, token_bytes: float) -> None:
    speed = gbs * 1e9 / token_bytes
    chart = roofline_chart(
        token_bytes,
        [Roof("a", gbs)],
        utilisation=1,
        launch_tok_s=speed,
        measured=[Mark(token_bytes, speed, "m")],
    )
    assert (chart.measured[0].x, chart.measured[0].y) == (chart.roofs[0].ceiling.x, chart.roofs[0].ceiling.y)


def test_a_measured_speed_has_the_colour_of_its_machine():
    roofs = [Roof(f"r{i}", 100.0 * (i + 1)) for i in range(10)]
    marks = [Mark(1e9, 10.0, "m", "r9"), Mark(1e9, 10.0, "m", "not drawn")]
    chart = roofline_chart(1e9, roofs, utilisation=0.5, launch_tok_s=10.0, measured=marks)
    assert [place.colour for place in chart.measured] == [chart.roofs[9].colour, 0]
    assert len({(roof.colour, roof.dashed) for roof in chart.roofs}) == len(roofs)
