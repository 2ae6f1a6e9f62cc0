"""What a person sees: tables, JSON, a progress bar."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cli.terminal import ProgressBar, json_text, table
from engine.progress import Progress


def test_a_table_puts_numbers_to_the_right() -> None:
    lines = table(["name", "tok/s"], [["a", "1.5"], ["bcd", "1,000.5"]]).splitlines()
    assert lines == ["name    tok/s", "a         1.5", "bcd   1,000.5"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(json_values)
def test_json_on_fewer_lines_is_the_same_json(value: Any) -> None:
    assert json.loads(json_text(value)) == value


def test_raw_samples_take_one_line() -> None:
    assert json_text({"itl_us": [[1.5, 2e-7], [3]]}).splitlines()[2:4] == ["    [1.5, 2e-07],", "    [3]"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_draws_on_a_terminal_and_leaves_nothing_behind() -> None:
    screen = Terminal()
    with ProgressBar("work", screen) as bar:
        bar(Progress(1, 2, "steps"))
    assert "work [##############..............]  50% 1 of 2 steps" in screen.getvalue()
    assert screen.getvalue().split("\r")[-2].strip() == ""


def test_a_progress_bar_is_silent_elsewhere() -> None:
    stream = io.StringIO()
    with ProgressBar("work", stream) as bar:
        bar(Progress(1, 2, "steps"))
    assert stream.getvalue() == ""
