"""Speed against devices: a line a kind of model, the floor, and published figures marked as such."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.tools.bench_node.measured import measured
from tools.bench_node.plot import LINE, draw, tick_step

SVG = "{http://www.w3.org/2000/svg}"
RUN = [
    measured(name, n, tok_s)
    for name, speeds in (("laneformer-2b", (900, 1500, 2900)), ("laneformer-2b-plain", (880, 1300, 2100)))
    for n, tok_s in zip((1, 2, 4), speeds, strict=True)
]


def parts(kind: str, run=RUN) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(draw(run, "laneformer-2b")).iter(SVG + kind))  # noqa: S314 (our own text)


def test_each_kind_is_a_line_through_its_medians_and_the_floor_is_dashed() -> None:
    lines = parts("polyline")
    assert [len(line.get("points", "").split()) for line in lines] == [3, 3, 3]
    assert [line.get("stroke-dasharray") is not None for line in lines] == [True, False, False]
    assert len(parts("circle")) == 6


def test_faster_is_higher_and_more_devices_are_further_right() -> None:
    places = [tuple(map(float, p.split(","))) for p in parts("polyline")[1].get("points", "").split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)


def test_published_speeds_are_named_and_told_from_what_was_measured() -> None:
    words = [element.text or "" for element in parts("text")]
    assert "Kog, H200: 2,100" in words
    assert "Kog, MI300X: 3,000" in words
    assert any("published by others, not measured here" in w for w in words)


def test_names_of_points_that_are_close_do_not_lie_on_each_other() -> None:
    close = [measured("laneformer-2b", 4, 2900), measured("laneformer-2b-plain", 4, 2895)]
    named = [e for e in parts("text", close) if (e.text or "").startswith(("lanes", "plain"))]
    first, second = sorted(float(e.get("y", "")) for e in named)
    assert second - first >= LINE


def test_a_run_without_the_plain_model_is_drawn_as_far_as_it_came() -> None:
    assert len(parts("circle", [m for m in RUN if m.model.name == "laneformer-2b"])) == 3


@pytest.mark.parametrize(
    ("most", "step"), [(0.5, 1), (7.0, 1), (8.0, 2), (1900.0, 200), (4000.0, 1000), (9e9, 2_000_000_000)]
)
def test_the_axis_has_four_to_ten_steps_however_fast_the_machine_is(most: float, step: int) -> None:
    assert tick_step(most) == step
    assert most / step <= 10


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="no measurement of laneformer-2b"):
        draw([], "laneformer-2b")
