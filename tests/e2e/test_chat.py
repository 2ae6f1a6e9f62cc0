"""The chat beside the editor, and what can be asked about a selection."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.scripted import ScriptedServer

TESTS_ASKED = (
    "Write tests for this code: plain functions whose names begin with test_,"
    " with assert, without any import."
)
ANSWER = "Here:\n\n```python\nprint(1)\n\nprint(2)\n```\nThat is all."


def selected(playground: PlaygroundPage, text: str) -> None:
    playground.type_prompt(text)
    playground.page.keyboard.press("ControlOrMeta+a")


def test_the_model_hears_the_whole_conversation_and_the_system_message(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    asked = server("One.")
    playground.wait_until_ready()
    playground.set(system="Be brief.")
    playground.ask("First?")
    playground.wait_for_answer()
    playground.ask("Second?")
    expect(playground.answers).to_have_count(2)
    playground.wait_for_answer()
    assert asked[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Second?"},
    ]
    assert "prompt" not in asked[1]


def test_a_new_chat_hears_nothing_of_the_old_one(server: ScriptedServer, playground: PlaygroundPage) -> None:
    asked = server("One.")
    playground.ask("First?")
    playground.wait_for_answer()
    playground.page.get_by_role("button", name="New chat").click()
    expect(playground.answers).to_have_count(0)
    playground.ask("Second?")
    playground.wait_for_answer()
    assert asked[1]["messages"] == [{"role": "user", "content": "Second?"}]


def test_code_in_an_answer_is_inserted_and_copied_without_its_fences(
    server: ScriptedServer, context: BrowserContext, playground: PlaygroundPage
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    server(ANSWER)
    playground.wait_until_ready()
    playground.type_prompt("# start\n")
    playground.ask("Print.")
    playground.wait_for_answer()
    code = playground.answers.locator(".code")
    expect(code).to_have_count(1)
    assert code.locator("pre").inner_text().strip() == "print(1)\n\nprint(2)"
    code.get_by_role("button", name="Copy").click()
    expect(code.get_by_role("button", name="Copied")).to_be_visible()
    assert playground.page.evaluate("navigator.clipboard.readText()") == "print(1)\n\nprint(2)"
    code.get_by_role("button", name="Insert").click()
    expect(playground.editor).to_contain_text("# startprint(1)print(2)")  # lines are elements of their own


def test_code_is_compared_with_the_editor_and_a_change_can_be_rejected(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("```python\na = 1\nb = 20\nc = 3\nd = 4\ne = 50\n```")
    playground.wait_until_ready()
    playground.type_prompt("a = 1\nb = 2\nc = 3\nd = 4\ne = 5")
    playground.ask("Tenfold.")
    playground.wait_for_answer()
    playground.answers.get_by_role("button", name="Compare").click()
    dialog = playground.page.get_by_role("dialog", name="Compare with the editor")
    expect(dialog.locator(".cm-deletedChunk")).to_have_count(2)
    dialog.get_by_role("button", name="Reject").first.click()
    expect(dialog.locator(".cm-deletedChunk")).to_have_count(1)
    dialog.get_by_role("button", name="Use the result").click()
    expect(dialog).to_be_hidden()
    expect(playground.editor).to_contain_text("a = 1b = 2c = 3d = 4e = 50")


def test_a_selection_is_continued_and_the_text_belongs_at_its_end(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    asked = server(" + 1")
    playground.wait_until_ready()
    playground.type_prompt("x = 1\ny = 2")
    playground.page.keyboard.press("ControlOrMeta+Home")
    playground.page.keyboard.press("Shift+End")
    playground.page.keyboard.press("ControlOrMeta+Shift+Enter")
    playground.wait_for_end()
    assert asked[0]["prompt"] == "x = 1"
    playground.page.get_by_role("button", name="Insert into prompt").click()
    expect(playground.editor).to_contain_text("x = 1 + 1y = 2")


@pytest.mark.parametrize(
    ("button", "question"),
    [("Explain", "Explain this code."), ("Write tests", TESTS_ASKED)],
)
def test_the_model_is_asked_about_a_selection(
    server: ScriptedServer, playground: PlaygroundPage, button: str, question: str
) -> None:
    asked = server("It adds.")
    playground.wait_until_ready()
    selected(playground, "x = 1 + 2")
    playground.page.get_by_role("button", name=button).click()
    playground.wait_for_answer()
    assert asked[0]["messages"] == [{"role": "user", "content": f"{question}\n\n```python\nx = 1 + 2\n```"}]
    expect(playground.answers).to_contain_text("It adds.")


def test_the_code_goes_along_if_the_reader_wants_it(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    asked = server("Yes.")
    playground.wait_until_ready()
    playground.type_prompt("x = 1")
    playground.show("Chat")
    playground.page.get_by_role("switch", name="With the code").check()
    playground.ask("Right?")
    playground.wait_for_answer()
    assert asked[0]["messages"][0]["content"] == "Right?\n\n```python\nx = 1\n```"


def test_without_a_chat_template_the_panel_says_so_and_how_to_get_one(
    server: ScriptedServer, page: Page
) -> None:
    server.worker["chat"] = False
    playground = PlaygroundPage.open(page)
    playground.show("Chat")
    expect(page.locator("#chat-none")).to_contain_text("scripted has no chat template")
    expect(page.locator("#chat-none")).to_contain_text("python -m engine worker --model smollm2-135m")
    expect(page.get_by_label("Your message")).to_be_disabled()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()


def test_a_refused_question_says_why_and_can_be_asked_again(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server(error={"code": "queue_full", "message": "The queue is full.", "retryable": True})
    playground.ask("Well?")
    expect(playground.page.get_by_role("alert")).to_contain_text("The queue is full.")
    server("Now.")
    playground.page.get_by_role("button", name="Try again").click()
    playground.wait_for_answer()
    expect(playground.answers.locator(".turn-body")).to_have_text("Now.")
    expect(playground.answers).to_have_count(1)


def test_an_example_for_the_chat_is_put_in_its_question(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("ok")
    playground.wait_until_ready()
    playground.page.get_by_label("Example").select_option(label="Chat: explain a closure")
    question = playground.page.get_by_label("Your message")
    expect(question).to_be_focused()
    expect(question).to_have_value("Explain what a closure is in JavaScript, with one short example.")


@pytest.mark.usefixtures("worker")
def test_the_real_model_answers_and_a_reload_in_mid_answer_goes_on(playground: PlaygroundPage) -> None:
    playground.wait_until_ready()
    playground.set(temperature=0, answer_tokens=60)
    playground.ask("What is a list?")
    playground.wait_for_tokens(8)
    playground.page.reload()
    playground.wait_for_answer()
    playground.show("Chat")
    assert "list" in playground.answers.inner_text()
    first = playground.answers.inner_text()
    playground.page.get_by_role("button", name="New chat").click()
    playground.ask("What is a list?")
    playground.wait_for_answer()
    assert playground.answers.inner_text() == first


def test_python_of_an_answer_becomes_the_program_s_tests(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("```python\ndef test_add():\n    assert add(1, 2) == 3\n```")
    playground.ask("Tests?")
    playground.wait_for_answer()
    playground.answers.get_by_role("button", name="To tests").click()
    tests = playground.page.get_by_role("textbox", name="Tests of the program")
    expect(tests).to_contain_text("def test_add():")


def test_long_code_in_an_answer_has_no_scrollbar_of_its_own(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("```python\n" + "x = 1\n" * 80 + "```")
    playground.ask("Much?")
    playground.wait_for_answer()
    heights = playground.answers.locator("pre").evaluate("(pre) => [pre.clientHeight, pre.scrollHeight]")
    assert heights[0] == heights[1]


MARKDOWN = """## A closure

It **remembers** the `variables` around it:

1. code
2. an environment

| name | value |
|------|-------|
| x | 1 |

See [the manual](https://example.org/manual), <b>not this</b> and ![a picture](https://example.org/p.png).
"""


def test_an_answer_s_markdown_is_shown_and_its_html_is_text(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server(MARKDOWN)
    playground.ask("What is a closure?")
    playground.wait_for_answer()
    prose = playground.answers.locator(".markdown")
    expect(prose.locator("h2")).to_have_text("A closure")
    expect(prose.locator("strong")).to_have_text("remembers")
    expect(prose.locator("ol > li")).to_have_text(["code", "an environment"])
    expect(prose.locator("td")).to_have_text(["x", "1"])
    expect(prose).to_contain_text("<b>not this</b>")
    assert prose.locator("img, b, script").count() == 0
    link = prose.get_by_role("link", name="the manual")
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"


def test_markdown_comes_in_pieces_as_it_would_come_whole(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("", endless=True)
    playground.ask("Slowly?")
    for at in range(0, len(MARKDOWN), 7):
        server.more(MARKDOWN[at : at + 7])
    playground.page.keyboard.press("Escape")
    playground.wait_for_answer()
    slowly = playground.answers.last.locator(".turn-body").inner_text()
    server(MARKDOWN)
    playground.ask("At once?")
    expect(playground.answers).to_have_count(2)
    playground.wait_for_answer()
    assert playground.answers.last.locator(".turn-body").inner_text() == slowly


def test_an_answer_is_made_anew_or_continued(server: ScriptedServer, playground: PlaygroundPage) -> None:
    server("One", finish="length")
    playground.ask("Count.")
    playground.wait_for_answer()
    server("Uno and", finish="length")
    playground.answers.get_by_role("button", name="Regenerate").click()
    expect(playground.answers.locator(".turn-body")).to_have_text("Uno and")
    playground.wait_for_answer()
    server(" due.")
    playground.answers.get_by_role("button", name="Continue").click()
    expect(playground.answers.locator(".turn-body")).to_have_text("Uno and due.")
    playground.wait_for_answer()
    assert server.asked[1]["messages"] == [{"role": "user", "content": "Count."}]
    assert server.asked[2]["messages"][-1] == {"role": "assistant", "content": "Uno and"}
    expect(playground.answers.get_by_role("button", name="Continue")).to_be_hidden()


def test_a_question_is_edited_and_what_followed_it_goes(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("One.")
    for question in ("First?", "Second?"):
        playground.ask(question)
        playground.wait_for_answer()
    page = playground.page
    page.locator(".turn[data-role=user]").first.get_by_role("button", name="Edit").click()
    field = page.get_by_label("Your message")
    expect(field).to_have_value("First?")
    field.fill("Better?")
    page.get_by_role("button", name="Send").click()
    expect(playground.answers).to_have_count(1)
    assert server.asked[-1]["messages"] == [{"role": "user", "content": "Better?"}]


def test_a_conversation_is_kept_and_taken_up_again(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    page = playground.page
    server("One.")
    playground.ask("First?")
    playground.wait_for_answer()
    page.get_by_role("button", name="New chat").click()
    expect(playground.answers).to_have_count(0)
    page.evaluate("sessionStorage.clear()")
    page.reload()
    playground.show("Chat")
    page.get_by_role("button", name="Chats").click()
    page.get_by_role("button", name="First?", exact=True).click()
    expect(playground.answers.locator(".turn-body")).to_have_text("One.")
    page.get_by_role("button", name="Chats").click()
    page.get_by_role("button", name="Delete First?").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("list", name="Conversations kept").get_by_role("listitem")).to_have_count(1)


def test_stop_stands_where_send_was(server: ScriptedServer, playground: PlaygroundPage) -> None:
    server("One", endless=True)
    page = playground.page
    send = page.locator("#chat-send")
    playground.show("Chat")
    before = send.bounding_box()
    playground.ask("Count.")
    stop = page.locator("#chat-stop")
    expect(stop).to_be_visible()
    expect(send).to_be_hidden()
    after = stop.bounding_box()
    assert before is not None
    assert after is not None
    assert (after["x"] + after["width"], after["y"]) == pytest.approx(
        (before["x"] + before["width"], before["y"])
    )
    stop.click()
    playground.wait_for_answer()
    expect(send).to_be_visible()


def test_an_unsent_message_survives_a_reload_and_its_size_is_said(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    page = playground.page
    playground.wait_until_ready()
    playground.show("Chat")
    page.get_by_label("Your message").fill("How long is this?")
    expect(page.locator("#chat-size")).to_contain_text("of 3,072 tokens")  # an answer of 1,024 fits beside it
    page.reload()
    playground.show("Chat")
    expect(page.get_by_label("Your message")).to_have_value("How long is this?")
    playground.set(answer_tokens=96)
    expect(page.locator("#chat-size")).to_contain_text("of 4,000 tokens")
    server("So long.")
    playground.ask("How long is this?")
    playground.wait_for_answer()
    assert server.asked[0]["max_tokens"] == 96


def test_code_of_an_answer_is_inserted_below_the_line_and_indented_as_it_is(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("```python\nself.items.append(item)\nreturn self\n```")
    playground.wait_until_ready()
    playground.type_prompt("class Stack:\n    def push(self, item):")
    playground.ask("Body?")
    playground.wait_for_answer()
    playground.answers.get_by_role("button", name="Insert").click()
    lines = playground.page.locator("#editor .cm-line").all_inner_texts()
    assert lines[1:] == ["    def push(self, item):", "    self.items.append(item)", "    return self"]


THOUGHTFUL = "<think>\nThe user wants a *number*.\n</think>\n\nIt is **42**."


def test_what_a_model_thinks_is_folded_and_not_said_again(
    server: ScriptedServer, playground: PlaygroundPage, context: BrowserContext
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    asked = server(THOUGHTFUL)
    playground.ask("Which?")
    playground.wait_for_answer()
    answer = playground.answers.first
    expect(answer.locator(".markdown")).to_have_text("It is 42.")
    thought = answer.get_by_text("The user wants a *number*.")
    expect(thought).to_be_hidden()
    answer.get_by_text("Thought, 26 characters").click()
    expect(thought).to_be_visible()
    answer.get_by_role("button", name="Copy").click()
    assert playground.page.evaluate("navigator.clipboard.readText()") == "It is **42**."
    playground.ask("Why?")
    playground.wait_for_answer()
    assert asked[1]["messages"][1] == {"role": "assistant", "content": "It is **42**."}


def test_a_thought_can_be_read_while_it_is_written(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("<think>\nLet me see", endless=True)
    playground.ask("Which?")
    playground.answers.get_by_text("Thinking…").click()
    expect(playground.answers.get_by_text("Let me see")).to_be_visible()
    server.more(" that.\n</think>\n\nYes.")
    expect(playground.answers.locator(".markdown")).to_have_text("Yes.")
    expect(playground.answers.get_by_text("Thought, 16 characters")).to_be_visible()
