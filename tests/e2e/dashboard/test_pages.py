"""Every page of the dashboard with data in it: light, dark, 320 px wide, under axe, as a picture."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import SCREENSHOTS, watched
from tests.e2e.stack import Stack
from tests.e2e.test_looks import NIGHTLY_SHAPES, SHAPES, Shape, breaches_of_wcag_aa, scrolls_sideways
from tests.nightly import each_time_but

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


@pytest.mark.parametrize("shape", each_time_but(NIGHTLY_SHAPES, SHAPES))
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


WORDS_CUT = """() => {
  const scrolls = (each) => getComputedStyle(each).overflowX !== "visible";
  const cut = (each) => {
    for (let on = each.parentElement; on; on = on.parentElement) {
      if (scrolls(on)) return each.localName === "caption" && each.clientWidth > on.clientWidth;
    }
    return each.getBoundingClientRect().right > innerWidth + 1;
  };
  return [...document.querySelectorAll("main *")]
    .filter((each) => each.checkVisibility() && !each.closest(".visually-hidden") && each.textContent.trim())
    .filter((each) => (each.childElementCount === 0 || each.localName === "caption") && cut(each))
    .map((each) => each.textContent.trim().slice(0, 60));
}"""
SIDEWAYS = "[...document.querySelectorAll('.table-wrap')].some((each) => each.scrollWidth > each.clientWidth)"


@pytest.mark.parametrize("width", [390, 1024])
def test_no_words_are_cut(browser: Browser, loaded: Stack, complaints: list[str], width: int) -> None:
    context = browser.new_context(base_url=loaded.url, viewport={"width": width, "height": 800})
    page = watched(context, complaints)
    cut = {}
    for name, path in PAGES.items():
        page.goto(f"/dashboard/{path}")
        cut[name] = page.evaluate(WORDS_CUT)
    assert not any(cut.values()), cut
    context.close()


def test_on_a_phone_the_overview_is_cards_that_need_no_scrolling_sideways(
    browser: Browser, loaded: Stack, complaints: list[str]
) -> None:
    context = browser.new_context(base_url=loaded.url, viewport={"width": 390, "height": 800})
    page = watched(context, complaints)
    page.goto("/dashboard/")
    assert not page.evaluate(SIDEWAYS)
    expect(page.locator(".fastest").get_by_text("context 256, dtp, delay 2").first).to_be_visible()
    context.close()
