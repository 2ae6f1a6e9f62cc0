"""Without a worker the page says so and what to do, and notices by itself when one comes."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.scripted import ScriptedServer
from tests.e2e.stack import Service


def test_without_a_worker_the_page_says_what_to_do(playground: PlaygroundPage) -> None:
    notice = playground.page.get_by_text("The engine is away.")
    expect(notice).to_be_visible()
    expect(playground.page.locator("#no-worker")).to_contain_text("python -m engine worker")
    expect(playground.run_button).to_be_disabled()


def test_the_page_notices_when_a_worker_comes_and_goes(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    notice = playground.page.locator("#no-worker")
    expect(notice).to_be_visible()
    service = paced(500)
    expect(notice).to_be_hidden(timeout=30_000)
    playground.set(max_tokens=1500)
    playground.run("hello")
    playground.wait_for_end()
    service.stop()
    expect(notice).to_be_visible(timeout=30_000)
    expect(notice).to_be_in_viewport()  # however long the output is


def test_a_worker_that_dies_is_said_to_be_missed_until_it_is_back(
    playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    service = paced(40)
    playground.set(max_tokens=400)
    playground.run("hello")
    playground.wait_for_tokens(20)
    service.kill()
    expect(playground.fate).to_have_text(
        "The engine is restarting; your text continues by itself.", timeout=30_000
    )
    service.start()
    playground.wait_for_end()
    assert playground.tokens == 400


def test_while_the_engine_is_silent_no_speed_is_claimed(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("one", endless=True)
    playground.run("x")
    for _ in range(8):
        server.more(" two")
    playground.wait_for_tokens(10)
    expect(playground.page.locator("#meter-rate")).not_to_have_text("–")
    expect(playground.fate).to_have_text(
        "The engine is silent; your text continues by itself once it answers."
    )
    expect(playground.page.locator("#meter-rate")).to_have_text("–")
    expect(playground.page.locator("#limit")).to_have_text("Waiting for the engine")
    expect(playground.page.locator("#no-worker")).to_be_hidden()
