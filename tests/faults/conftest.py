"""What the tests of failures measure, as a table printed last.

Each test is there twice: a short form among all tests, and its full one (`make test-faults`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.product import Product, running_product

Figures = Callable[[str, str, object], None]
"""Notes what was measured: what it is, what it must be, what it was."""

FULL = pytest.param(True, id="full", marks=[pytest.mark.faults, pytest.mark.nightly])
forms = pytest.mark.parametrize("full", [pytest.param(False, id="short"), FULL])


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Figures:
    def note(what: str, must: str, measured: object) -> None:
        record_property("figure", (what, must, str(measured)))

    return note


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One web process and one worker of 1,000 tokens a second, for the short forms."""
    with running_product(tmp_path_factory.mktemp("product")) as found:
        found.add_paced("paced-0")
        found.wait_for_workers(1)
        yield found


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A Markdown table, of earlier runs too where FAULT_FIGURES names the file that they share. With several
    processes, only the one that collects their reports writes it."""
    rows = [
        f"| {' | '.join(value)} |"
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "figure" and report.when == "call"
    ]
    if not rows or hasattr(terminalreporter.config, "workerinput"):
        return
    if kept := os.environ.get("FAULT_FIGURES"):
        with Path(kept).open("a+", encoding="utf-8") as file:
            file.write("".join(f"{row}\n" for row in rows))
            file.seek(0)
            rows = file.read().splitlines()
    terminalreporter.write_line("")
    for line in ("| what | must | measured |", "|---|---|---|", *rows):
        terminalreporter.write_line(line)
