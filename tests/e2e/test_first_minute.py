"""What somebody meets who has never seen the page, on a wide screen and on a narrow one."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.playground_page import PlaygroundPage, wait_until
from tests.e2e.scripted import ScriptedServer


@pytest.fixture
def first(server: ScriptedServer, page: Page) -> PlaygroundPage:
    server.worker["devices"] = ["an old laptop"]
    server(" pass\n" * 40)
    playground = PlaygroundPage.open(page)
    playground.wait_until_ready()
    return playground


def test_the_first_screen_says_what_this_is_and_what_it_runs_on(first: PlaygroundPage) -> None:
    welcome = first.page.locator("#hint")
    expect(welcome).to_contain_text(
        "Monolane is an open engine for language models, built for the speed of a single request."
    )
    expect(welcome).to_contain_text("Here it runs scripted on an old laptop.")


def test_no_empty_figure_stands_above_the_introduction(first: PlaygroundPage) -> None:
    figures = first.page.locator("#meters, .lane, #speed-notes")
    for each in figures.all():
        expect(each).to_be_hidden()
    first.run()
    first.wait_for_end()
    for each in figures.all():
        expect(each).to_be_visible()


def test_run_stands_at_the_code(first: PlaygroundPage) -> None:
    run, editor = first.run_button.bounding_box(), first.page.locator("#editor").bounding_box()
    assert run is not None and editor is not None
    assert 0 <= editor["y"] - (run["y"] + run["height"]) < 16


def test_only_the_engine_has_a_green_dot(first: PlaygroundPage) -> None:
    first.run()
    first.wait_for_end()
    like_the_engine_s = """() => {
      const green = getComputedStyle(document.querySelector("#engine .dot")).backgroundColor;
      return [...document.querySelectorAll("main *, header *")]
        .filter((each) => each.checkVisibility())
        .flatMap((each) => [getComputedStyle(each), getComputedStyle(each, "::before")])
        .filter((style) => style.content !== "none" && style.borderRadius === "50%")
        .filter((style) => style.backgroundColor === green).length;
    }"""
    expect(first.page.locator("#connection")).to_have_text("Connected")
    assert first.page.evaluate(like_the_engine_s) == 1


def test_a_speed_is_told_by_what_people_read(first: PlaygroundPage) -> None:
    expect(first.page.locator("#hint")).to_contain_text("People read about 5 a second")
    first.run()
    first.wait_for_end()
    expect(first.page.locator("#reading")).to_have_text("20 times as fast as people read")


def test_the_page_says_what_a_seed_promises(first: PlaygroundPage) -> None:
    page = first.page
    first.run()
    first.wait_for_end()
    promise = (
        "Where part of the prompt was kept from an earlier run, two tokens that are almost equally likely"
    )
    assert promise in (page.get_by_role("button", name="Reuse seed").get_attribute("title") or "")
    page.get_by_role("button", name="Settings").click()
    expect(page.locator("#seed-help")).to_contain_text(promise)


def test_three_examples_are_one_click_away(server: ScriptedServer, first: PlaygroundPage) -> None:
    page = first.page
    page.get_by_role("button", name="Complete a class").click()
    first.wait_for_end()
    assert server.asked[0]["prompt"].startswith("class Stack")
    page.reload()
    page.evaluate("sessionStorage.clear()")
    page.reload()
    first.wait_until_ready()
    page.get_by_role("button", name="Ask what a closure is").click()
    first.wait_for_answer()
    assert server.asked[1]["messages"][0]["content"].startswith("Explain what a closure is")
    first.show("Output")
    page.get_by_role("button", name="Fix a bug").click()
    expect(page.locator("#run-result[data-state=failed]")).to_be_attached(timeout=60_000)
    expect(page.get_by_role("button", name="Fix it")).to_be_enabled()


def test_one_button_calls_in_every_tab(first: PlaygroundPage) -> None:
    for tab, name in (("Output", "run"), ("Python", "run-start")):
        first.show(tab)
        calls = """() => [...document.querySelectorAll("button.primary")]
          .filter((one) => one.checkVisibility() && !one.disabled)
          .filter((one) => getComputedStyle(one).backgroundColor === "rgb(255, 197, 49)")
          .map((one) => one.id)"""
        assert first.page.evaluate(calls) == [name]


def test_on_a_phone_the_results_are_in_sight_after_run(server: ScriptedServer, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    server("    pass\n" * 60, endless=True)
    playground = PlaygroundPage.open(page)
    playground.wait_until_ready()
    playground.run_button.click()
    playground.wait_for_tokens(2)
    shown = """() => {
      const { top, bottom } = document.getElementById("output").getBoundingClientRect();
      return Math.min(innerHeight, bottom) - Math.max(0, top);
    }"""
    assert wait_until(page, lambda: page.evaluate(shown) > 350)
    page.keyboard.press("Escape")
    playground.wait_for_end()
    expect(playground.run_button).to_be_focused()
    assert page.evaluate(shown) > 350


def test_settings_lie_over_the_results_where_there_is_no_room_beside_them(first: PlaygroundPage) -> None:
    page = first.page
    page.set_viewport_size({"width": 1024, "height": 768})
    width = "document.getElementById('result').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Max tokens", exact=True)).to_be_in_viewport()
    assert page.evaluate(width) == before
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#settings")).to_be_hidden()
    page.get_by_role("button", name="Settings").click()
    first.run()
    expect(page.locator("#settings")).to_be_hidden()
    first.wait_for_end()


def test_an_output_that_its_limit_ended_goes_on(server: ScriptedServer, first: PlaygroundPage) -> None:
    server(" = 1", finish="length")
    first.run("x")
    first.wait_for_end()
    server(" + 2")
    first.page.get_by_role("button", name="Continue").click()
    expect(first.page.locator("#text")).to_contain_text("+ 2")
    assert server.asked[1]["prompt"] == "x = 1"


def test_output_is_inserted_once(server: ScriptedServer, first: PlaygroundPage) -> None:
    server(" = 1")
    first.run("x")
    first.wait_for_end()
    insert = first.page.get_by_role("button", name="Insert into prompt")
    insert.click()
    expect(insert).to_be_disabled()
    expect(first.editor).to_have_text("x = 1")


def test_output_goes_to_the_cursor_once_its_prompt_is_another_one(
    server: ScriptedServer, first: PlaygroundPage
) -> None:
    server(" = 1", finish="length")
    first.run("x")
    first.wait_for_end()
    first.type_prompt("first\n")
    first.page.keyboard.press("ControlOrMeta+Home")
    expect(first.page.get_by_role("button", name="Continue", exact=True)).to_be_hidden()
    first.page.get_by_role("button", name="Insert at the cursor").click()
    expect(first.editor).to_have_text(" = 1first")
