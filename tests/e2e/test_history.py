"""One's own runs in this browser: found, named, taken up again, deleted."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, Locator, expect

from tests.e2e.conftest import watched
from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.scripted import ScriptedServer


def entries(playground: PlaygroundPage) -> Locator:
    return playground.page.locator("#history-list > li")


@pytest.fixture
def runs(server: ScriptedServer, playground: PlaygroundPage) -> PlaygroundPage:
    """Two runs were made, one after the other, and the history is open."""
    for prompt, answer in (("def first():", "\n    return 1"), ("def second():", "\n    return 2")):
        server(answer)
        playground.run(prompt)
        playground.wait_for_end()
    playground.show("History")
    expect(entries(playground)).to_have_count(2)
    return playground


def test_runs_are_listed_newest_first_and_outlive_the_page(runs: PlaygroundPage) -> None:
    runs.page.reload()
    runs.show("History")
    expect(runs.page.locator(".history-title")).to_have_text(["def second():", "def first():"])
    expect(runs.page.locator("#history-note")).to_contain_text("2 runs, in this browser alone")


def test_a_second_tab_sees_what_becomes_of_the_runs(
    context: BrowserContext, complaints: list[str], runs: PlaygroundPage
) -> None:
    second = PlaygroundPage.open(watched(context, complaints))
    second.show("History")
    expect(entries(second)).to_have_count(2)
    entries(runs).first.locator("summary").click()
    entries(runs).first.get_by_label("Name").fill("the better one")
    runs.page.keyboard.press("Enter")
    expect(second.page.locator(".history-title")).to_have_text(["the better one", "def first():"])
    entries(runs).first.get_by_role("button", name="Delete").click()
    expect(second.page.locator(".history-title")).to_have_text(["def first():"])
    second.run("def third():")
    second.wait_for_end()
    expect(runs.page.locator(".history-title")).to_have_text(["def third():", "def first():"])


def test_a_search_finds_a_run_by_what_it_wrote(runs: PlaygroundPage) -> None:
    runs.page.get_by_label("Search the history").fill("return 1")
    expect(runs.page.locator(".history-title")).to_have_text(["def first():"])
    expect(runs.page.locator("#history-note")).to_have_text("1 run of 2 found.")


def test_a_run_keeps_the_name_that_it_is_given(runs: PlaygroundPage) -> None:
    entries(runs).first.locator("summary").click()
    entries(runs).first.get_by_label("Name").fill("the better one")
    runs.page.keyboard.press("Enter")
    expect(runs.page.locator(".history-title").first).to_have_text("the better one")
    runs.page.reload()
    runs.show("History")
    expect(runs.page.locator(".history-title").first).to_have_text("the better one")


def test_a_run_that_ends_disturbs_nobody_who_types_in_the_list(
    server: ScriptedServer, runs: PlaygroundPage
) -> None:
    server(" pass", endless=True)
    entries(runs).first.locator("summary").click()
    runs.run_button.click()
    runs.show("History")
    entries(runs).first.get_by_label("Name").fill("half a na")
    runs.page.keyboard.press("Escape")  # stops the run
    expect(entries(runs)).to_have_count(3)
    name = entries(runs).nth(1).get_by_label("Name")
    expect(name).to_have_value("half a na")
    expect(name).to_be_focused()


def test_a_deleted_run_is_gone_unless_it_is_brought_back(runs: PlaygroundPage) -> None:
    entries(runs).first.locator("summary").click()
    entries(runs).first.get_by_role("button", name="Delete").click()
    expect(entries(runs)).to_have_count(1)
    runs.page.get_by_role("button", name="Undo").click()
    expect(entries(runs)).to_have_count(2)
    runs.page.get_by_role("button", name="Delete all").click()
    expect(entries(runs)).to_have_count(0)
    runs.page.reload()
    runs.show("History")
    expect(runs.page.locator("#history-note")).to_contain_text("No run yet.")


def test_an_old_prompt_is_taken_up_again(runs: PlaygroundPage) -> None:
    runs.page.locator("#language").select_option("text")
    entries(runs).last.locator("summary").click()
    entries(runs).last.get_by_role("button", name="Prompt to editor").click()
    expect(runs.editor).to_have_text("def first():")
    expect(runs.editor).to_be_focused()
    assert runs.page.locator("#language").input_value() == "python"


def test_a_gap_is_taken_up_again_with_both_its_sides(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    page = playground.page
    asked = server("a + b")
    playground.wait_until_ready()
    page.get_by_label("Example").select_option(label="Fill in the middle")
    playground.run()
    playground.wait_for_end()
    playground.type_prompt("something else")
    page.get_by_role("radio", name="Complete").check()
    playground.show("History")
    entries(playground).first.locator("summary").click()
    entries(playground).first.get_by_role("button", name="Prompt to editor").click()
    playground.show("Output")
    playground.run()
    playground.wait_for_end()
    assert asked[0]["suffix"]
    assert [asked[1][side] for side in ("prompt", "suffix")] == [
        asked[0][side] for side in ("prompt", "suffix")
    ]


def test_runs_are_not_kept_where_that_is_switched_off(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server(" pass")
    playground.show("History")
    playground.page.get_by_role("switch", name="Keep runs").uncheck()
    playground.show("Output")
    playground.run("def f():")
    playground.wait_for_end()
    playground.show("History")
    expect(entries(playground)).to_have_count(0)
    expect(playground.page.locator("#history-note")).to_have_text("Runs are not kept.")


def test_keeping_switched_off_in_one_tab_is_off_in_the_others(
    context: BrowserContext, complaints: list[str], server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server(" pass")
    playground.show("History")
    second = PlaygroundPage.open(watched(context, complaints))
    second.show("History")
    second.page.get_by_role("switch", name="Keep runs").uncheck()
    expect(playground.page.get_by_role("switch", name="Keep runs")).not_to_be_checked()
    playground.show("Output")
    playground.run("def f():")
    playground.wait_for_end()
    playground.show("History")
    expect(playground.page.locator("#history-note")).to_have_text("Runs are not kept.")
