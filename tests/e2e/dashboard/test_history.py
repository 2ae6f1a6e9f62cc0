"""The history in a browser: its zoom in the address, figures under the keys, steps, and many points."""

from __future__ import annotations

import json
import re
from itertools import count

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.stack import Stack

pytestmark = pytest.mark.usefixtures("loaded")
POINTS = 10_000
FRAMES_A_SECOND = 50
ATTEMPTS = 10
"""Something else may have the cores for a second; ten times in a row it is the page."""


@pytest.fixture
def history(page: Page, loaded: Stack) -> Page:
    """The made-up history, found as a person finds it."""
    page.goto("/dashboard/history/")
    page.get_by_label("made-up-135m").check()
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator(".uplot canvas")).to_be_visible()
    return page


def test_a_zoom_is_in_the_address_and_survives_a_reload(history: Page) -> None:
    history.get_by_role("button", name="Zoom in").click()
    expect(history).to_have_url(re.compile(r"from=2026-01-1\dT.*to=2026-01-3\dT"))
    zoomed = history.url
    history.reload()
    history.get_by_role("button", name="Later").click()
    expect(history).not_to_have_url(zoomed)
    history.get_by_role("button", name="Show all").click()
    expect(history).not_to_have_url(re.compile("from="))


def test_the_arrow_keys_read_out_each_run_with_its_interval_and_n(history: Page) -> None:
    plot = history.get_by_role("group", name="Chart;")
    plot.focus()
    plot.press("ArrowRight")
    readout = history.locator(".readout")
    expect(readout).to_contain_text("n = 5")
    first = readout.inner_text()
    plot.press("ArrowRight")
    expect(readout).not_to_have_text(first)
    plot.press("Enter")
    expect(history).to_have_url(re.compile(r"/dashboard/runs/\d+/$"))


def test_a_step_names_the_commits_between_which_the_level_changed(history: Page) -> None:
    row = history.get_by_role("region", name="Steps").get_by_role("row").filter(has_text="better")
    expect(row).to_contain_text("+12")
    expect(row.get_by_role("link", name="Compare")).to_be_visible()


def test_the_link_button_copies_the_address_with_the_zoom(history: Page) -> None:
    history.context.grant_permissions(["clipboard-read", "clipboard-write"])
    history.get_by_role("button", name="Zoom in").click()
    expect(history).to_have_url(re.compile("from="))
    history.get_by_role("button", name="Copy link").click()
    expect(history.get_by_role("button", name="Copied")).to_be_visible()
    assert history.evaluate("navigator.clipboard.readText()") == history.url


def test_zooming_ten_thousand_points_stays_above_50_frames_a_second(page: Page, loaded: Stack) -> None:
    page.route("**/dashboard/history/?configuration=1*", _with_many_points)
    page.goto("/dashboard/history/?configuration=1")
    expect(page.locator(".uplot canvas")).to_be_visible()
    page.locator(".u-over").scroll_into_view_if_needed()
    best = 0.0
    for _ in range(ATTEMPTS):
        taken = page.evaluate(ZOOM_FOR_A_SECOND)
        print(f"{taken['fps']:.1f} frames/s, longest {taken['longest']:.1f} ms")
        best = max(best, taken["fps"])
        if best > FRAMES_A_SECOND:
            break
    assert best > FRAMES_A_SECOND


def _with_many_points(route: Route) -> None:
    """The server's own page, with made-up columns in place of the stored ones."""
    page = route.fetch()
    element = r'(<script id="history-data"[^>]*>)(.*?)(</script>)'
    data = json.loads(re.search(element, page.text(), re.DOTALL)[2])  # type: ignore[index]
    numbers, level = count(1), 100.0
    for one in data["series"]:
        values = [level + 8 * (k > POINTS // 2) + k * 7919 % 100 / 50 for k in range(POINTS)]
        one |= {
            "run": [next(numbers) for _ in values],
            "time": [1.7e9 + 3600 * k for k in range(POINTS)],
            "value": values,
            "low": [v - 1 for v in values],
            "high": [v + 1 for v in values],
            "n": [5] * POINTS,
            "sha": [0] * POINTS,
            "differs": [],
        }
    many = json.dumps(data)
    route.fulfill(
        response=page, body=re.sub(element, lambda m: m[1] + many + m[3], page.text(), flags=re.DOTALL)
    )


ZOOM_FOR_A_SECOND = """() => new Promise((done) => {
  const over = document.querySelector(".u-over");
  const box = over.getBoundingClientRect();
  const times = [];
  const frame = (now) => {
    times.push(now);
    const deltaY = times.length % 40 < 20 ? -100 : 100;
    const wheel = { deltaY, ctrlKey: true, bubbles: true, cancelable: true };
    const place = { clientX: box.x + box.width * 0.4, clientY: box.y + box.height / 2 };
    over.dispatchEvent(new WheelEvent("wheel", { ...wheel, ...place }));
    if (now - times[0] < 1000) return requestAnimationFrame(frame);
    const gaps = times.slice(1).map((time, i) => time - times[i]);
    done({ fps: 1000 * gaps.length / (times.at(-1) - times[0]), longest: Math.max(...gaps) });
  };
  requestAnimationFrame(frame);
})"""
