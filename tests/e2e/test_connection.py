"""Sockets break, queues form: the text stays whole and the page says what is going on.

The engine here emits known words at a set pace, so that every text can be compared to the letter.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, WebSocketRoute, expect

from tests.e2e.conftest import watched
from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.stack import Service
from tests.nightly import at_night

TOKENS_A_CUT = 400


class Line:
    """The connection between a page and the server, in the test's hands."""

    def __init__(self) -> None:
        self._route: WebSocketRoute | None = None

    def take(self, route: WebSocketRoute) -> None:
        route.connect_to_server()
        self._route = route

    def cut(self) -> bool:
        """Returns whether there was a connection to cut."""
        route, self._route = self._route, None
        if route is not None:
            route.close(code=3001)
        return route is not None


@pytest.fixture
def line(context: BrowserContext) -> Line:
    """Must be asked for before the page."""
    line = Line()
    context.route_web_socket("**/ws/playground/", line.take)
    return line


@pytest.mark.parametrize("cuts", [15, at_night(50)])
def test_a_socket_cut_again_and_again_at_random_loses_and_doubles_nothing(
    line: Line, playground: PlaygroundPage, paced: Callable[[int], Service], cuts: int
) -> None:
    slow, tokens = paced(500), TOKENS_A_CUT * cuts
    playground.set(max_tokens=tokens)
    playground.run("hello")
    chance = random.Random(20261121)
    done = 0
    while done < cuts:
        playground.page.wait_for_timeout(chance.randint(1, 250))
        done += line.cut()
        if chance.random() < 0.7:  # or the page waits out its own pause
            playground.page.evaluate("dispatchEvent(new Event('online'))")
    assert 0 < playground.tokens < tokens, "the cuts must fall into the stream"
    playground.wait_for_end()
    assert playground.tokens == tokens
    broken = playground.text
    assert len(broken.split()) + broken.count("\n") == tokens
    slow.stop()
    expect(playground.page.locator("#no-worker")).to_be_visible()
    paced(50_000)
    playground.run()
    playground.wait_for_end()
    assert playground.text == broken


def test_a_broken_socket_is_named_and_comes_back(
    line: Line, playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(100)
    connection = playground.page.locator("#connection")
    expect(connection).to_have_text("Connected")
    playground.page.evaluate(
        """() => {
          window.states = [];
          const place = document.getElementById("connection");
          const note = () => window.states.push(place.dataset.state);
          new MutationObserver(note).observe(place, { attributes: true });
        }"""
    )
    playground.set(max_tokens=400)
    playground.run("hello")
    playground.wait_for_tokens(10)
    line.cut()
    playground.wait_for_end()
    seen = playground.page.evaluate("window.states")
    assert [state for i, state in enumerate(seen) if i == 0 or seen[i - 1] != state] == [
        "reconnecting",
        "catching up",
        "live",
    ]


def test_the_place_in_the_queue_is_shown(
    context: BrowserContext,
    complaints: list[str],
    playground: PlaygroundPage,
    paced: Callable[[int], Service],
) -> None:
    paced(100)
    playground.set(max_tokens=6000)
    playground.run("first")
    playground.wait_for_tokens(1)
    second = PlaygroundPage.open(watched(context, complaints))
    second.set(max_tokens=20)
    second.run("second")
    expect(second.fate).to_contain_text("in the queue")
    waited = second.page.locator("#meter-total").inner_text()
    expect(second.page.locator("#meter-total")).not_to_have_text(waited)
    playground.stop_button.click()
    second.wait_for_end()
    assert second.tokens == 20


def test_a_queued_run_can_be_stopped(
    context: BrowserContext,
    complaints: list[str],
    playground: PlaygroundPage,
    paced: Callable[[int], Service],
) -> None:
    paced(100)
    playground.set(max_tokens=6000)
    playground.run("first")
    playground.wait_for_tokens(1)
    second = PlaygroundPage.open(watched(context, complaints))
    second.run("second")
    expect(second.fate).to_contain_text("in the queue")
    second.stop_button.click()
    second.wait_for_end(20)
    assert second.text == ""
    expect(second.run_button).to_be_enabled()
