"""Two engines and a pacer, started together, told apart, and shared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.conftest import SCREENSHOTS, watched
from tests.e2e.stack import Service, Stack
from tests.e2e.test_looks import NIGHTLY_SHAPES, SHAPES, Shape, scrolls_sideways, serious_violations
from tests.nightly import each_time_but

Start = Callable[..., Service]


@pytest.fixture
def engine(stack: Stack) -> Iterator[Start]:
    """Starts a paced worker of a name, a speed in tok/s and a number of rows."""
    with stack.workers() as add:
        yield lambda name, tok_s, rows=1: add(
            name, "--model", "words", "--backend", "paced", "--option", f"tok_s={tok_s}", "--rows", str(rows)
        )


def lane(page: Page, number: int) -> Locator:
    return page.locator(".race-lane").nth(number)


def open_race(page: Page, workers: int) -> None:
    """Opens the page and waits until it offers so many workers."""
    page.goto("/race/")
    expect(page.locator("#entry-1 option[value^='worker ']")).to_have_count(workers, timeout=30_000)
    expect(page.get_by_role("button", name="Start")).to_be_enabled()


def start(page: Page, tokens: int) -> None:
    page.get_by_label("Max tokens").fill(str(tokens))
    page.get_by_role("button", name="Start").click()


def wait_for_end(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop")).to_be_disabled(timeout=60_000)


def seconds(text: str) -> float:
    """What a clock on the page shows."""
    number, unit = text.split()
    return float(number.replace(",", "")) * {"ms": 0.001, "s": 1.0}[unit]


def test_engines_of_different_speed_start_together_and_take_their_places(page: Page, engine: Start) -> None:
    engine("slow", 150)
    engine("fast", 300)
    open_race(page, 2)
    expect(page.locator("#entry-3")).to_have_value("pacer")
    start(page, 600)
    expect(page.locator(".race-lane[data-state='running']")).to_have_count(3)
    wait_for_end(page)
    places = {page.locator(".race-lane [data-part=detail]").nth(i).inner_text().rsplit(" · ")[-1]:
              lane(page, i).locator("[data-part=place]").inner_text() for i in range(2)}  # fmt: skip
    assert places == {"fast": "First", "slow": "Second"}
    assert lane(page, 2).locator("[data-part=place]").inner_text() == "Third"
    assert "Not an engine" in lane(page, 2).inner_text()
    clocks = [seconds(lane(page, i).locator("[data-part=clock]").inner_text()) for i in range(3)]
    assert clocks[2] == pytest.approx(6.0, abs=0.01)
    fast, slow = sorted(clocks[:2])
    assert 2.0 <= fast < 3.5
    assert 4.0 <= slow < 5.5, "a contestant that waited for the other would take the sum, 6 s"
    assert page.locator("#announcer").inner_text().startswith("The race is over. 1: words on paced at ")


def test_a_worker_that_takes_several_requests_races_itself(page: Page, engine: Start) -> None:
    engine("both", 150, rows=2)
    open_race(page, 1)
    page.locator("#entry-2").select_option("worker both")
    start(page, 600)
    expect(page.locator(".race-lane[data-state='running']")).to_have_count(2)
    wait_for_end(page)
    expect(page.locator(".race-lane[data-state='done']")).to_have_count(2)


def test_a_race_is_shared_under_an_address_that_its_owner_takes_back(
    page: Page, browser: Browser, stack: Stack, engine: Start, complaints: list[str]
) -> None:
    engine("one", 500)
    open_race(page, 1)
    start(page, 40)
    wait_for_end(page)
    page.get_by_role("button", name="Share this race").click()
    link = page.locator("#race-shared a")
    expect(link).to_be_visible()
    address = link.inner_text()
    assert re.fullmatch(re.escape(stack.url) + r"/g/[A-Za-z0-9_-]{22}/", address)

    stranger = browser.new_context()
    try:
        visit = watched(stranger, complaints)
        visit.goto(address)
        expect(visit.get_by_role("heading", level=1)).to_have_text("Race: class Stack:")
        expect(visit.locator(".result-lane")).to_have_count(2)
        expect(visit.get_by_text("not an engine")).to_be_visible()
        assert visit.get_by_text("Revoke").count() == 0
        picture = visit.request.get(str(visit.locator("meta[property='og:image']").get_attribute("content")))
        assert picture.headers["content-type"] == "image/png"
        (SCREENSHOTS / "card-race.png").write_bytes(picture.body())
        link.click()
        page.locator("summary", has_text="Revoke").click()
        page.get_by_role("button", name="Take it down").click()
        expect(page.get_by_text("Nothing yet.")).to_be_visible()
        assert visit.request.get(address).status == 404
    finally:
        stranger.close()


def test_a_stopped_race_says_who_did_not_get_there_and_cannot_be_shared(page: Page, engine: Start) -> None:
    engine("one", 100)
    open_race(page, 1)
    start(page, 2000)
    expect(lane(page, 0)).to_have_attribute("data-state", "running")
    page.keyboard.press("Escape")
    wait_for_end(page)
    expect(lane(page, 0).locator("[data-part=words]")).to_have_text("Stopped")
    expect(page.get_by_text("A lane that did not run to an end")).to_be_visible()
    expect(page.get_by_role("button", name="Share this race")).to_be_disabled()
    expect(page.get_by_role("button", name="Start")).to_be_focused()


def test_what_is_no_race_is_said_before_it_starts(page: Page, engine: Start) -> None:
    engine("one", 500)
    open_race(page, 1)
    problem = page.get_by_role("alert")
    page.locator("#entry-2").select_option("worker one")
    page.get_by_role("button", name="Start").click()
    expect(problem).to_contain_text("cannot race itself")
    page.locator("#entry-2").select_option("")
    page.get_by_role("button", name="Start").click()
    expect(problem).to_contain_text("needs two contestants")
    assert page.locator(".race-lane").count() == 0


TINY: Shape = {"viewport": {"width": 320, "height": 640}}


@pytest.mark.parametrize("shape", each_time_but([*NIGHTLY_SHAPES, "tiny"], [*SHAPES, "tiny"]))
def test_a_race_is_readable_and_accessible_in_every_shape(
    shape: str, browser: Browser, stack: Stack, engine: Start, complaints: list[str]
) -> None:
    engine("one", 150)  # not so fast that one is over before all three were seen to run
    engine("two", 120)
    context = browser.new_context(base_url=stack.url, **SHAPES.get(shape, TINY))
    try:
        page = watched(context, complaints)
        open_race(page, 2)
        start(page, 200)
        expect(page.locator(".race-lane[data-state='running']")).to_have_count(3)
        page.screenshot(path=SCREENSHOTS / f"race-{shape}-running.png")
        wait_for_end(page)
        page.screenshot(path=SCREENSHOTS / f"race-{shape}.png", full_page=True)
        assert not scrolls_sideways(page)
        assert serious_violations(page) == []
        page.get_by_role("button", name="Share this race").click()
        page.locator("#race-shared a").click()
        page.screenshot(path=SCREENSHOTS / f"shared-race-{shape}.png", full_page=True)
        assert not scrolls_sideways(page)
        assert serious_violations(page) == []
    finally:
        context.close()
