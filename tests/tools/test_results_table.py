"""The tables of results say what the committed files hold."""

from __future__ import annotations

import pytest

from tools import results_table
from tools.results_table import BENCHMARKS, DETAILS, PAGES, SAMPLING, UnknownTableError, rewritten


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_say_what_the_committed_files_hold(page: results_table.Path) -> None:
    text = page.read_text("utf-8")
    assert "<!-- results: " in text
    assert rewritten(text) == text


def test_a_figure_changed_by_hand_is_noticed() -> None:
    text = PAGES[0].read_text("utf-8")
    speed = f"**{results_table._speed(results_table.HEADLINES[0].point()):,.0f}**"
    assert speed in text
    assert rewritten(text.replace(speed, "**9,999**")) == text


def test_every_committed_measurement_is_in_a_table() -> None:
    named = {row.file for row in (*DETAILS, *SAMPLING)}
    left_out = {f"laneformer-2b-delay{d}-h200-x1.json" for d in (0, 1)}
    """On one GPU the delay changes the model, not the exchange; the plot has these points."""
    assert {path.name for path in BENCHMARKS.glob("*.json")} - named == left_out


def test_an_unknown_table_is_refused_by_name() -> None:
    with pytest.raises(UnknownTableError, match="nonsense: known are headlines, details, sampling, peers"):
        rewritten("<!-- results: nonsense -->\n<!-- end of results -->")
