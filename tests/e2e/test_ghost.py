"""Ghost text: suggestions while somebody types, which wait for nobody and keep nobody waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.scripted import ScriptedServer
from tests.e2e.stack import Service

SLOW_TOK_S = 5
PAUSE_MS = 250
"""After which a page asks (static/src/playground/ghost.js)."""


@pytest.fixture
def typing(server: ScriptedServer, page: Page) -> PlaygroundPage:
    """The page as a new visitor has it, with an empty editor."""
    server(" world\n    again")
    return open_for_typing(page)


def open_for_typing(page: Page) -> PlaygroundPage:
    playground = PlaygroundPage.open(page, ghost=True)
    playground.wait_until_ready()
    playground.editor.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    return playground


def ghost(playground: PlaygroundPage) -> Locator:
    return playground.page.locator("#editor .cm-ghost")


def written(playground: PlaygroundPage) -> str:
    """The editor's document: its lines without the ghost."""
    return str(
        playground.page.evaluate(
            """() => [...document.querySelectorAll("#editor .cm-line")].map((line) => {
              const copy = line.cloneNode(true);
              copy.querySelectorAll(".cm-ghost").forEach((ghost) => ghost.remove());
              return copy.textContent;
            }).join("\\n")"""
        )
    )


def test_a_pause_in_typing_brings_a_suggestion_and_tab_takes_all_of_it(typing: PlaygroundPage) -> None:
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_have_text(" world\n    again")
    assert written(typing) == "hello"
    typing.page.keyboard.press("Tab")
    assert written(typing) == "hello world\n    again"


def test_control_and_right_takes_a_word_at_a_time(typing: PlaygroundPage) -> None:
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_be_visible()
    typing.page.keyboard.press("ControlOrMeta+ArrowRight")
    assert written(typing) == "hello world"
    expect(ghost(typing)).to_have_text("\n    again")
    typing.page.keyboard.press("ControlOrMeta+ArrowRight")
    assert written(typing) == "hello world\n    again"


def test_escape_rejects_and_then_tab_leaves_the_editor(typing: PlaygroundPage) -> None:
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_be_visible()
    typing.page.keyboard.press("Escape")
    expect(ghost(typing)).to_have_count(0)
    typing.page.keyboard.press("Tab")
    expect(typing.editor).not_to_be_focused()
    assert written(typing) == "hello"


def test_typing_what_is_suggested_keeps_the_rest_of_it(
    server: ScriptedServer, typing: PlaygroundPage
) -> None:
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_be_visible()
    asked = len(server.asked)
    typing.page.keyboard.type(" wor")
    expect(ghost(typing)).to_have_text("ld\n    again")
    typing.page.wait_for_timeout(2 * PAUSE_MS)
    assert len(server.asked) == asked
    typing.page.keyboard.type("m")
    expect(ghost(typing)).to_have_count(0)


def test_fast_typing_asks_once(server: ScriptedServer, page: Page) -> None:
    server(" world")
    page.clock.install()  # before the page has any timer
    typing = open_for_typing(page)
    page.clock.pause_at(time.time() + 60)
    for letter in "hello there":
        page.keyboard.type(letter)
        page.clock.run_for(PAUSE_MS - 1)
    assert server.asked == []
    page.clock.resume()
    expect(ghost(typing)).to_be_visible()
    assert [one["prompt"] for one in server.asked] == ["hello there"]


def test_the_next_key_stops_the_engine(server: ScriptedServer, typing: PlaygroundPage) -> None:
    server(" world", endless=True)
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_be_visible()
    assert server.heard == ["start"]
    typing.page.keyboard.type("!")
    expect(ghost(typing)).to_have_text(" world")  # asked again, after the stop
    assert server.heard == ["start", "stop", "start"]


def test_a_run_stops_the_suggestion_and_nothing_is_suggested_meanwhile(
    server: ScriptedServer, typing: PlaygroundPage
) -> None:
    server(" world", endless=True)
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_be_visible()
    typing.page.keyboard.press("ControlOrMeta+Enter")
    expect(ghost(typing)).to_have_count(0)
    typing.wait_for_tokens(2)
    assert server.heard == ["start", "stop", "start"]
    assert server.asked[1]["max_tokens"] == 256  # the run
    typing.editor.click()
    typing.page.keyboard.type("more")
    typing.page.wait_for_timeout(2 * PAUSE_MS)
    assert server.heard == ["start", "stop", "start"]


def test_a_model_that_fills_in_is_shown_both_sides_of_the_cursor(
    server: ScriptedServer, typing: PlaygroundPage
) -> None:
    expect(typing.page.locator("#ghost-note")).to_have_text("as you type, from the code around the cursor")
    typing.page.keyboard.insert_text("a = \nprint(a)")
    typing.page.keyboard.press("ArrowUp")
    typing.page.keyboard.press("End")
    typing.page.keyboard.type("b")
    expect(ghost(typing)).to_be_visible()
    assert (server.asked[-1]["prompt"], server.asked[-1]["suffix"]) == ("a = b", "\nprint(a)")


def test_a_model_that_does_not_is_sent_the_prefix_and_the_page_says_so(
    server: ScriptedServer, page: Page
) -> None:
    server.worker["infill"] = False
    server(" world")
    playground = PlaygroundPage.open(page, ghost=True)
    note = page.locator("#ghost-note")
    expect(note).to_have_text("as you type, from the code before the cursor")
    playground.type_prompt("\nafter")
    page.keyboard.press("ControlOrMeta+Home")
    page.keyboard.type("hello")
    expect(ghost(playground)).to_be_visible()
    assert "suffix" not in server.asked[-1]


def test_the_switch_is_remembered(server: ScriptedServer, typing: PlaygroundPage) -> None:
    switch = typing.page.get_by_role("switch", name="Suggestions")
    expect(switch).to_be_checked()
    switch.uncheck()
    typing.page.reload()
    expect(switch).not_to_be_checked()
    typing.editor.click()
    typing.page.keyboard.type("hello")
    typing.page.wait_for_timeout(2 * PAUSE_MS)
    assert server.asked == []


def test_a_refusal_makes_a_pause_as_long_as_the_server_asks_for(
    server: ScriptedServer, typing: PlaygroundPage
) -> None:
    server(error={"code": "rate_limited", "message": "Too many.", "retryable": True, "retry_after_s": 30})
    typing.page.keyboard.type("hello")
    expect(typing.page.locator("#ghost-note")).to_contain_text("paused for 30 s")
    typing.page.keyboard.type(" again")
    typing.page.wait_for_timeout(2 * PAUSE_MS)
    assert len(server.asked) == 1
    expect(typing.page.get_by_role("alert")).to_have_count(0)


def test_a_suggestion_that_does_not_come_in_time_is_given_up_and_the_page_says_so(
    server: ScriptedServer, typing: PlaygroundPage
) -> None:
    server("", endless=True)
    typing.page.keyboard.type("hello")
    note = typing.page.locator("#ghost-note")
    expect(note).to_have_text("paused for 15 s: the engine is too slow or busy")
    assert server.heard == ["start", "stop"]
    typing.page.keyboard.type(" again")
    typing.page.wait_for_timeout(2 * PAUSE_MS)
    assert len(server.asked) == 1


def test_a_screen_reader_hears_a_suggestion_once_it_is_whole(typing: PlaygroundPage) -> None:
    typing.page.keyboard.type("hello")
    expect(typing.page.locator("#announcer")).to_have_text("Suggestion: world")


@pytest.mark.usefixtures("worker")
def test_the_real_model_goes_on_with_code(page: Page) -> None:
    playground = PlaygroundPage.open(page, ghost=True)
    page.wait_for_selector("#engine[data-state=ready]")
    playground.type_prompt("class Stack:\n    def __init__(self):\n        self.items = []\n")
    page.keyboard.insert_text("\n    def push(self, item):\n        self")
    expect(ghost(playground)).to_contain_text(".items.append(item)")
    page.keyboard.press("Tab")
    assert "self.items.append(item)" in written(playground)


def test_a_run_does_not_wait_for_a_suggestion(page: Page, paced: Callable[[int], Service]) -> None:
    paced(SLOW_TOK_S)
    playground = PlaygroundPage.open(page, ghost=True)
    page.wait_for_selector("#engine[data-state=ready]")
    playground.set(max_tokens=4)
    playground.type_prompt("def first(items):\n    return")
    page.keyboard.type(" items")
    expect(ghost(playground)).to_be_visible()  # and its engine is busy with the rest of 48 tokens
    asked = time.monotonic()
    page.keyboard.press("ControlOrMeta+Enter")
    playground.wait_for_tokens(1)
    assert time.monotonic() - asked < 20 / SLOW_TOK_S


def test_a_suggestion_below_the_last_visible_line_is_scrolled_into_sight(
    server: ScriptedServer, typing: PlaygroundPage
) -> None:
    server("\n    one\n    two\n    three\n    four")
    typing.page.keyboard.insert_text("\n".join(f"line_{number} = {number}" for number in range(80)))
    typing.page.keyboard.type("\ndef f():")
    expect(ghost(typing)).to_be_visible()
    ends = """() => [".cm-ghost", ".cm-scroller"].map((name) =>
      document.querySelector(`#editor ${name}`).getBoundingClientRect().bottom)"""
    ghost_end, view_end = typing.page.evaluate(ends)
    assert ghost_end <= view_end + 1


def test_a_suggestion_that_was_scrolled_away_is_shown_before_it_is_taken(
    server: ScriptedServer, typing: PlaygroundPage
) -> None:
    server("\n    one\n    two")
    typing.page.keyboard.insert_text("\n".join(f"line_{number} = {number}" for number in range(80)))
    typing.page.keyboard.type("\ndef f():")
    expect(ghost(typing)).to_be_visible()
    typing.page.evaluate("document.querySelector('#editor .cm-scroller').scrollTop -= 60")
    typing.page.keyboard.press("Tab")
    expect(ghost(typing)).to_be_in_viewport()
    expect(ghost(typing)).to_be_visible()
    typing.page.keyboard.press("Tab")
    expect(ghost(typing)).to_have_count(0)
    expect(typing.editor).to_contain_text("two")


def test_a_suggestion_ends_before_a_fence(server: ScriptedServer, typing: PlaygroundPage) -> None:
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_be_visible()
    assert "```" in server.asked[-1]["stop"]


def test_control_i_goes_to_the_chat_from_the_editor(typing: PlaygroundPage) -> None:
    typing.page.keyboard.type("hello")
    typing.page.keyboard.press("ControlOrMeta+i")
    expect(typing.page.get_by_label("Your message")).to_be_focused()


def test_a_line_of_a_suggestion_is_accepted_alone(server: ScriptedServer, typing: PlaygroundPage) -> None:
    server(" one\n    two\n    three")
    typing.page.keyboard.type("hello")
    expect(ghost(typing)).to_be_visible()
    typing.page.get_by_role("button", name="Accept line").click()
    assert written(typing) == "hello one"
    expect(ghost(typing)).to_have_text("\n    two\n    three")
    typing.page.keyboard.press("ControlOrMeta+ArrowDown")
    assert written(typing) == "hello one\n    two"


def test_a_docstring_is_typed_with_all_its_quotes(playground: PlaygroundPage) -> None:
    code = '"""The nth number."""\n' + "n = '''one'''"
    playground.type_prompt("")
    playground.page.keyboard.type(code)
    assert written(playground) == code


def test_the_editor_finds_text_and_closes_brackets(playground: PlaygroundPage) -> None:
    page = playground.page
    playground.type_prompt("alpha = 1\nbeta = 2")
    page.keyboard.type("\nprint(")
    expect(playground.editor).to_contain_text("print()")
    page.keyboard.press("ControlOrMeta+f")
    page.get_by_role("textbox", name="Find").press_sequentially("beta")
    expect(page.locator(".cm-searchMatch")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.get_by_role("textbox", name="Find")).to_have_count(0)
