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
    assert wait_until(page, lambda: page.evaluate(shown) > 350, timeout_s=3)


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
