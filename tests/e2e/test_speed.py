"""What the page says of speed: who sets the pace, and what a number of tokens costs in time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Locator, WebSocketRoute, expect

from tests.e2e.playground_page import PlaygroundPage, wait_until
from tests.e2e.stack import Service

ATTEMPTS = 3
BUSY_MAIN_THREAD = """() => {
  setInterval(() => {
    const end = performance.now() + 200;
    while (performance.now() < end);
  }, 10);
}"""


class LateLine:
    """What the server sends reaches the page only when the test passes it on."""

    def __init__(self) -> None:
        self._route: WebSocketRoute | None = None
        self._held: list[tuple[float, str | bytes]] = []

    def take(self, route: WebSocketRoute) -> None:
        self._route = route
        route.connect_to_server().on_message(lambda said: self._held.append((time.monotonic(), said)))

    def pass_on(self, late_s: float) -> None:
        """Passes on what has been held for so long."""
        while self._route and self._held and time.monotonic() - self._held[0][0] >= late_s:
            self._route.send(self._held.pop(0)[1])


@pytest.fixture
def line(context: BrowserContext) -> LateLine:
    """Must be asked for before the page."""
    line = LateLine()
    context.route_web_socket("**/ws/playground/", line.take)
    return line


def limit(playground: PlaygroundPage) -> Locator:
    return playground.page.locator("#limit")


def test_an_engine_that_sets_the_pace_is_said_to_and_its_tokens_are_priced_in_time(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(250)
    page = playground.page
    expect(limit(playground)).to_be_empty()
    playground.set(max_tokens=500)
    for _ in range(ATTEMPTS):
        playground.run("hello")
        expect(limit(playground)).to_have_text("Limited by: engine")
        playground.wait_for_end()
        if limit(playground).inner_text() == "Limited by: engine":
            break  # else this machine was busy with something else
    expect(limit(playground)).to_have_text("Limited by: engine")
    page.get_by_text("Timing", exact=True).click()
    page.get_by_label("tokens", exact=True).fill("10000")
    expect(page.locator("#budget-here")).to_have_text(re.compile(r"^(39|4[0-2])\.\d s$"))


def test_a_late_network_is_named(
    line: LateLine, playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    page = playground.page
    paced(300)

    def passing(late_s: float, holds: Callable[[], bool]) -> bool:
        def step() -> bool:
            line.pass_on(late_s)
            return holds()

        return wait_until(page, step)

    assert passing(0, playground.run_button.is_enabled)
    playground.set(max_tokens=1800)
    playground.run("hello")
    assert passing(0, lambda: playground.tokens >= 300)
    assert passing(0.6, lambda: limit(playground).get_attribute("data-limit") == "network")
    expect(limit(playground)).to_contain_text("Limited by: network")
    assert passing(0.6, page.locator("#output[data-state=over]").is_visible)
    expect(limit(playground)).to_contain_text("Limited by: network for")


def test_a_browser_that_cannot_keep_up_is_named(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(300)
    playground.set(max_tokens=900)
    playground.run("hello")
    playground.wait_for_tokens(1)
    playground.page.evaluate(BUSY_MAIN_THREAD)
    expect(limit(playground)).to_have_text("Limited by: this browser")
    playground.wait_for_end()
    expect(limit(playground)).to_contain_text("Limited by: this browser for")
