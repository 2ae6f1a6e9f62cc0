"""How the pages look and how they are reached: themes, narrow screens, keyboard, screen readers, weight.

Pictures of every state go to `screenshots/` under MONOLANE_HOME, to be looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tests.e2e.conftest import SCREENSHOTS, watched
from tests.e2e.playground_page import PlaygroundPage, wait_until
from tests.e2e.scripted import ScriptedServer
from tests.e2e.stack import ROOT, Service, Stack
from tests.nightly import at_night, each_time_but

PAGES = ("/", "/dashboard/", "/dashboard/history/", "/dashboard/sweeps/")
AXE = ROOT / "node_modules/axe-core/axe.min.js"
FIRST_LOAD_BYTES = 350_000
LINE_PX = 30


class Shape(TypedDict, total=False):
    """What a browser's context is made with."""

    color_scheme: Literal["light", "dark"]
    viewport: ViewportSize


SHAPES: dict[str, Shape] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    "narrow": {"color_scheme": "dark", "viewport": {"width": 360, "height": 780}},
}


NIGHTLY_SHAPES = ["dark"]
"""Its colours are those of the narrow page."""


@pytest.fixture(params=each_time_but(NIGHTLY_SHAPES, SHAPES))
def shaped(
    request: pytest.FixtureRequest, browser: Browser, stack: Stack, complaints: list[str]
) -> Iterator[tuple[str, Page]]:
    """A page in one theme and size, with that shape's name."""
    context = browser.new_context(base_url=stack.url, **SHAPES[request.param])
    yield request.param, watched(context, complaints)
    context.close()


def serious_violations(page: Page) -> list[str]:
    """What axe-core calls serious or critical, one line each."""
    return [_line(one) for one in _violations(page, "{}") if one["impact"] in ("serious", "critical")]


def breaches_of_wcag_aa(page: Page) -> list[str]:
    """Every rule of WCAG 2.2 A and AA that axe-core finds broken, of whatever impact."""
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    return [_line(one) for one in _violations(page, json.dumps({"runOnly": tags}))]


def _violations(page: Page, options: str) -> list[dict[str, Any]]:
    page.evaluate(AXE.read_text())
    found: list[dict[str, Any]] = page.evaluate(f"axe.run({options}).then(result => result.violations)")
    return found


def _line(violation: dict[str, Any]) -> str:
    places = ", ".join(str(node["target"][0]) for node in violation["nodes"][:3])
    return f"{violation['id']}: {violation['help']} at {places}"


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_a_finished_run_is_readable_and_accessible_in_every_shape(
    shaped: tuple[str, Page], worker: Service
) -> None:
    shape, page = shaped
    playground = PlaygroundPage.open(page)
    playground.set(temperature=0, max_tokens=120)
    playground.run()
    playground.wait_for_tokens(20)
    page.screenshot(path=SCREENSHOTS / f"playground-{shape}-running.png")
    playground.wait_for_end()
    page.screenshot(path=SCREENSHOTS / f"playground-{shape}.png", full_page=True)
    assert not scrolls_sideways(page)
    assert serious_violations(page) == []


ANSWER = """A longer answer, with `code` in it.

```python
class Stack:
    def __init__(self):
        self.items = []

    def pop(self):
        return self.items.pop()
```

\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd"""


def test_every_state_of_the_playground_is_accessible_and_fits_in_every_shape(
    shaped: tuple[str, Page],
) -> None:
    shape, page = shaped
    if shape == "narrow":
        page.set_viewport_size({"width": 320, "height": 780})
    server = ScriptedServer()
    server.serve(page.context)
    server(" self.items.append(item)\n        return self")
    playground = PlaygroundPage.open(page, ghost=True)
    playground.wait_until_ready()

    def check(state: str) -> None:
        page.screenshot(path=SCREENSHOTS / f"playground-{shape}-{state}.png")
        assert not scrolls_sideways(page), state
        assert breaches_of_wcag_aa(page) == [], state

    page.get_by_role("button", name="Settings").click()
    check("settings")
    page.get_by_role("button", name="Settings").click()
    playground.run()
    playground.wait_for_end()
    check("finished")
    page.get_by_role("button", name="Export").click()
    check("code")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Share").click()
    check("share")
    page.keyboard.press("Escape")
    playground.show("History")
    page.locator("#history-list summary").click()
    check("history")
    page.locator("#history-list").get_by_role("button", name="Delete").click()
    check("history-deleted")
    playground.show("Output")
    playground.editor.click()
    page.keyboard.press("ControlOrMeta+End")
    page.keyboard.type("\n#")
    expect(page.locator(".cm-ghost")).to_be_visible()
    check("ghost")
    page.keyboard.press("Escape")
    page.keyboard.press("ControlOrMeta+a")
    server(ANSWER)
    page.get_by_role("button", name="Explain").click()
    playground.wait_for_answer()
    page.evaluate("document.getElementById('panel-chat').scrollIntoView()")
    check("chat")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compare .cm-deletedChunk").first).to_be_visible()
    check("diff")
    page.get_by_role("button", name="Close").click()
    server(error={"code": "rate_limited", "message": "Too many.", "retryable": True, "retry_after_s": 9})
    playground.ask("Again?")
    expect(page.get_by_role("button", name="Try again in")).to_be_disabled()
    check("refused")
    page.keyboard.press("F1")
    check("keys")
    page.keyboard.press("Escape")
    server("still going", endless=True)
    playground.show("Output")
    playground.run()
    playground.wait_for_tokens(2)
    check("running")
    server.hang_up()
    expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")
    check("reconnecting")


def test_the_page_without_a_worker_is_accessible_in_every_shape(shaped: tuple[str, Page]) -> None:
    shape, page = shaped
    PlaygroundPage.open(page)
    expect(page.locator("#no-worker")).to_be_visible()
    page.screenshot(path=SCREENSHOTS / f"playground-{shape}-no-worker.png")
    assert not scrolls_sideways(page)
    assert breaches_of_wcag_aa(page) == []


def test_nothing_moves_by_itself_for_who_asked_for_less_motion(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    page = playground.page
    page.emulate_media(reduced_motion="reduce")
    server("one\ntwo", endless=True)
    playground.run()
    playground.wait_for_tokens(2)
    moving = page.evaluate(
        """() => document.getAnimations()
          .filter((one) => one.effect.getComputedTiming().endTime > 1)
          .map((one) => one.animationName ?? one.transitionProperty)"""
    )
    assert moving == []
    behaviours = "[...document.querySelectorAll('*')].map((one) => getComputedStyle(one).scrollBehavior)"
    assert set(page.evaluate(behaviours)) == {"auto"}


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_accessible_and_fits_in_every_shape(shaped: tuple[str, Page], path: str) -> None:
    shape, page = shaped
    page.goto(path)
    page.wait_for_load_state("networkidle")
    name = path.strip("/").replace("/", "-") or "playground-empty"
    page.screenshot(path=SCREENSHOTS / f"{name}-{shape}.png", full_page=True)
    assert not scrolls_sideways(page)
    assert serious_violations(page) == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_in_320_pixels(page: Page, path: str) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    page.goto(path)
    assert not scrolls_sideways(page)


def test_a_chosen_theme_is_remembered_and_the_system_s_is_the_default(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("radio", name="Light").check()
    page.goto("/dashboard/")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(245, 244, 240)"


def test_the_first_load_is_light_and_asks_no_other_host(
    context: BrowserContext, page: Page, stack: Stack
) -> None:
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    devtools = context.new_cdp_session(page)
    devtools.send("Network.enable")
    sizes: list[float] = []
    devtools.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    PlaygroundPage.open(page)
    page.wait_for_load_state("networkidle")
    assert hosts == {urlsplit(stack.url).netloc}
    assert len(sizes) >= 6
    assert sum(sizes) < FIRST_LOAD_BYTES


def test_a_small_screen_holds_a_suggestion_before_the_pages_font_has_come(
    browser: Browser, stack: Stack
) -> None:
    context = browser.new_context(base_url=stack.url, viewport={"width": 320, "height": 780})
    context.route("**/*.woff2", lambda route: route.abort())
    server = ScriptedServer()
    server.serve(context)
    server(" self.items.append(item)\n        return self")
    playground = PlaygroundPage.open(context.new_page(), ghost=True)
    playground.wait_until_ready()
    playground.editor.click()
    playground.page.keyboard.press("ControlOrMeta+End")
    playground.page.keyboard.type("\n#")
    expect(playground.page.locator(".cm-ghost")).to_be_visible()
    assert not scrolls_sideways(playground.page)
    context.close()


def test_the_first_paint_comes_within_a_second(page: Page) -> None:
    PlaygroundPage.open(page)
    paint = page.evaluate(
        """() => new Promise((done) => new PerformanceObserver((list) => {
          for (const { startTime } of list.getEntriesByName("first-contentful-paint")) done(startTime);
        }).observe({ type: "paint", buffered: true }))"""
    )
    print(f"first contentful paint after {paint:.0f} ms")
    assert paint < 1000


def test_the_tabs_follow_the_arrow_keys(playground: PlaygroundPage) -> None:
    page = playground.page
    page.get_by_role("tab", name="Output").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Chat")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Chat")).to_be_visible()
    expect(page.locator("#panel-output")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tabpanel", name="Output")).to_be_visible()


def test_the_page_says_how_long_prompts_are_kept(playground: PlaygroundPage) -> None:
    notice = playground.page.get_by_text("This server keeps prompts, answers and suggestions for 30 days.")
    expect(notice).to_be_visible()


def test_the_keys_are_listed_on_f1_and_escape_closes_the_list(playground: PlaygroundPage) -> None:
    page = playground.page
    playground.editor.click()
    page.keyboard.press("F1")
    keys = page.get_by_role("dialog", name="Keyboard")
    expect(keys).to_contain_text("Leaves the editor")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    expect(playground.editor).to_be_focused()


def test_everything_can_be_done_from_the_keyboard(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(200)
    playground.wait_until_ready()
    page = playground.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    reached: list[str] = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if reached[-1] == "run":
            break
    assert "example" in reached
    expect(playground.run_button).to_be_focused()
    page.keyboard.press("Enter")
    expect(playground.stop_button).to_be_focused()
    playground.wait_for_tokens(10)
    page.keyboard.press("Enter")
    playground.wait_for_end()
    expect(playground.run_button).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    page.keyboard.press("Tab")
    expect(playground.editor).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")  # Escape first: Tab alone indents
    expect(page.get_by_role("switch", name="Suggestions")).to_be_focused()


def test_a_screen_reader_hears_the_start_and_the_end_but_not_each_token(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(200)
    page = playground.page
    playground.wait_until_ready()
    page.evaluate(
        """() => {
          window.heard = [];
          const note = () => window.heard.push(document.getElementById("announcer").textContent);
          new MutationObserver(note).observe(document.getElementById("announcer"), { childList: true });
        }"""
    )
    playground.set(max_tokens=100)
    playground.run("hello")
    playground.wait_for_end()
    heard = page.evaluate("window.heard")
    assert heard[0] == "Generating."
    assert heard[1].startswith("Finished: 100 tokens at ")
    assert len(heard) == 2
    assert page.locator("#output").get_attribute("aria-live") is None


def test_the_view_follows_the_end_until_the_reader_scrolls_away(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(1000)
    page = playground.page
    playground.set(max_tokens=20_000)
    playground.run("hello")
    playground.wait_for_tokens(1000)
    assert wait_until(page, lambda: distance_from_the_end(page) < LINE_PX)
    page.locator("#output").hover()
    page.mouse.wheel(0, -400)
    expect(page.get_by_role("button", name="Follow the end")).to_be_visible()
    here = scrolled_to(page)
    playground.wait_for_tokens(playground.tokens + 500)
    assert scrolled_to(page) == here
    page.get_by_role("button", name="Follow the end").click()
    assert wait_until(page, lambda: distance_from_the_end(page) < LINE_PX)
    page.keyboard.press("Escape")
    playground.wait_for_end()


def distance_from_the_end(page: Page) -> float:
    """Of the output's view, in pixels."""
    end = "(output) => output.scrollHeight - output.scrollTop - output.clientHeight"
    return float(page.locator("#output").evaluate(end))


def scrolled_to(page: Page) -> float:
    """Where the output's view rests: a wheel's turn may move it for some frames."""
    at = -1.0
    while (now := float(page.locator("#output").evaluate("(output) => output.scrollTop"))) != at:
        at = now
        page.evaluate("new Promise((done) => setTimeout(done, 100))")
    return at


@pytest.mark.parametrize("width", [1280, at_night(1000), 320])
def test_nothing_around_the_text_moves_while_a_run_starts_streams_and_ends(
    playground: PlaygroundPage, paced: Callable[[int], Service], width: int
) -> None:
    paced(300)
    page = playground.page
    page.set_viewport_size({"width": width, "height": 800})
    playground.set(max_tokens=900)
    page.wait_for_selector("#engine[data-state=ready]")
    playground.run()  # the first one puts its figures in the introduction's place
    playground.wait_for_end()
    page.wait_for_selector("#engine[data-state=ready]")
    page.evaluate(
        """() => {
          const watched = ["engine", "modes", "run", "stop", "copy", "meter-ttft", "meter-total", "output",
            "fate", "connection"];
          window.places = new Set();
          const note = () => {
            const at = watched.map((id) => {
              const { left, top, width } = document.getElementById(id).getBoundingClientRect();
              return width ? [id, left + scrollX, top + scrollY] : [id];
            });
            window.places.add(JSON.stringify(at));
            requestAnimationFrame(note);
          };
          note();
        }"""
    )
    playground.run()
    page.wait_for_selector("#engine[data-state=busy]")
    playground.wait_for_end()
    page.wait_for_selector("#engine[data-state=ready]")
    seen = [{name: at for name, *at in json.loads(places)} for places in page.evaluate("[...places]")]
    moved = {name for places in seen for name, at in places.items() if at != seen[0][name]}
    assert moved == set()
