"""Every page of the dashboard with data in it: light, dark, 320 px wide, under axe, as a picture."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import SCREENSHOTS, watched
from tests.e2e.stack import Stack
from tests.e2e.test_looks import SHAPES, Shape, breaches_of_wcag_aa, scrolls_sideways

NARROW: Shape = {**SHAPES["narrow"], "viewport": {"width": 320, "height": 780}}
PAGES = {
    "overview": "",
    "runs": "runs/",
    "failed": "runs/?failed=1",
    "run": "runs/1/",
    "history": "history/?configuration=1&configuration=2",
    "compare": "compare/?run=1&run=2&run=3",
    "commits": "compare/commits/",
    "regressions": "regressions/",
    "regression": "regressions/1/",
    "roofline": "roofline/",
    "sweeps": "sweeps/",
    "sweep": "sweeps/1/",
    "sign-in": "sign-in/",
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_fits(
    browser: Browser, loaded: Stack, complaints: list[str], name: str, shape: str
) -> None:
    context = browser.new_context(base_url=loaded.url, **(NARROW if shape == "narrow" else SHAPES[shape]))
    page = watched(context, complaints)
    page.goto(f"/dashboard/{PAGES[name]}")
    if name == "run":
        page.locator(".waterfall").scroll_into_view_if_needed()
        expect(page.locator(".waterfall .readout")).to_contain_text("132 lines")
    page.screenshot(path=SCREENSHOTS / f"dashboard-{name}-{shape}.png", full_page=True)
    assert not scrolls_sideways(page)
    assert breaches_of_wcag_aa(page) == []
    context.close()
