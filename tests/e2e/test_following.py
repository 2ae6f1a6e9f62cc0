"""The view stays at the end of what streams until the reader leaves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.playground_page import PlaygroundPage, wait_until
from tests.e2e.scripted import ScriptedServer
from tests.e2e.stack import Service

LINES = "".join(f"    value_{number} = compute({number}, depth={number * 7})\n" for number in range(6))
LINE_PX = 30
END = "(view) => view.scrollHeight - view.scrollTop - view.clientHeight"


@pytest.mark.parametrize(("view", "place"), [("#output", "Output"), ("#chat-log", "Chat")])
def test_the_end_of_long_code_stays_in_sight_while_nobody_scrolls(
    server: ScriptedServer, playground: PlaygroundPage, view: str, place: str
) -> None:
    server("```python\n" if place == "Chat" else LINES, endless=True)
    page = playground.page
    if place == "Chat":
        playground.ask("Go on.")
    else:
        playground.run("x = 1")
    playground.wait_for_tokens(2)
    for _ in range(60):  # over 13,000 characters, many blocks
        server.more(LINES)
        page.wait_for_timeout(20)
    assert wait_until(page, lambda: playground.tokens >= 62)
    assert wait_until(page, lambda: from_the_end(page, view) < LINE_PX, timeout_s=2)
    expect(page.get_by_role("button", name="Follow the end")).to_be_hidden()
    last = page.locator(f"{view} .block").last
    expect(last).to_be_in_viewport()


def test_who_scrolls_up_stays_there(server: ScriptedServer, playground: PlaygroundPage) -> None:
    server(LINES * 10, endless=True)
    page = playground.page
    playground.run("x = 1")
    playground.wait_for_tokens(2)
    page.locator("#output").hover()
    page.mouse.wheel(0, -300)
    expect(page.get_by_role("button", name="Follow the end")).to_be_visible()
    at = page.locator("#output").evaluate("(view) => view.scrollTop")
    for _ in range(10):
        server.more(LINES)
        page.wait_for_timeout(20)
    assert page.locator("#output").evaluate("(view) => view.scrollTop") == pytest.approx(at, abs=2)


WATCH_THE_END = """() => {
  const [view, away] = [document.getElementById("output"), document.getElementById("to-end")];
  window.seen = { frames: 0, left: 0, furthest: 0 };
  const look = () => {
    seen.frames += 1;
    seen.left += away.hidden ? 0 : 1;
    seen.furthest = Math.max(seen.furthest, view.scrollHeight - view.scrollTop - view.clientHeight);
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


@pytest.mark.nightly
def test_the_end_of_20000_tokens_stays_in_sight_in_every_frame(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(5000)
    page = playground.page
    playground.set(max_tokens=20_000)
    playground.run("hello")
    playground.wait_for_tokens(1)
    page.evaluate(WATCH_THE_END)
    playground.wait_for_end()
    seen = page.evaluate("seen")
    print(seen)
    assert playground.tokens == 20_000
    assert seen["frames"] > 60
    assert seen["left"] == 0
    assert seen["furthest"] < page.locator("#output").evaluate("(view) => view.clientHeight") / 2
    assert from_the_end(page, "#output") < LINE_PX


def from_the_end(page: Page, view: str) -> float:
    return float(page.locator(view).evaluate(END))
