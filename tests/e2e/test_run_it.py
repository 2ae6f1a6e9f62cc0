"""Python runs in the browser: a person's programs, their tests, their limits."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.run_panel import RunPanel


@pytest.fixture
def panel(page: Page) -> RunPanel:
    return RunPanel.open(page)


def test_a_program_prints_and_its_tests_pass(panel: RunPanel) -> None:
    panel.run(
        "def add(a, b):\n    return a + b\n\nprint('hello', add(1, 2))\n",
        "def test_add():\n    assert add(1, 2) == 3\n",
    )
    panel.wait_for("passed")
    expect(panel.headline).to_contain_text("The test passed in")
    expect(panel.printed).to_have_text("hello 3\n")
