"""What the page does with text that no model here would write: a scripted server sends it."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.scripted import ScriptedServer


def test_markup_in_the_output_is_text(server: ScriptedServer, playground: PlaygroundPage) -> None:
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp; \u202e reversed"
    server(text)
    playground.run("x")
    playground.wait_for_end()
    assert playground.text == text
    assert playground.page.locator("#text img, #text script").count() == 0


def test_a_right_to_left_line_is_set_from_the_right(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("שלום עולם")
    playground.run("x\n")
    playground.wait_for_end()
    line_left = """() => {
      const range = document.createRange();
      range.selectNodeContents(document.querySelector("#text .block"));
      const box = document.getElementById("text").getBoundingClientRect();
      return range.getBoundingClientRect().left - box.left;
    }"""
    assert playground.page.evaluate(line_left) > 100


def test_copy_gives_the_exact_text_and_so_does_a_selection(
    server: ScriptedServer, context: BrowserContext, playground: PlaygroundPage
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "".join(f"line {number}\n\n    indented\n" for number in range(400))
    server(text)
    playground.run("x")
    playground.wait_for_end()
    playground.page.get_by_role("button", name="Copy").click()
    expect(playground.page.get_by_role("button", name="Copied")).to_be_visible()
    assert playground.page.evaluate("navigator.clipboard.readText()") == text
    selected = playground.page.evaluate(
        "getSelection().selectAllChildren(document.getElementById('text')), getSelection().toString()"
    )
    assert selected.rstrip("\n") == text.rstrip("\n")


def test_an_error_is_told_in_its_words_and_can_be_tried_again(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server(
        error={"code": "queue_full", "message": "The queue is full: 256 requests wait.", "retryable": True}
    )
    playground.run("x")
    expect(playground.page.get_by_role("alert")).to_contain_text("The queue is full: 256 requests wait.")
    server("now it works")
    playground.page.get_by_role("button", name="Try again").click()
    playground.wait_for_end()
    assert playground.text == "now it works"
    expect(playground.page.get_by_role("alert")).to_be_hidden()


def test_an_error_that_a_retry_cannot_mend_offers_none(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server(error={"code": "too_long", "message": "The prompt is too long.", "retryable": False})
    playground.run("x")
    expect(playground.page.get_by_role("alert")).to_contain_text("The prompt is too long.")
    expect(playground.page.get_by_role("button", name="Try again")).to_be_hidden()


def test_an_empty_prompt_is_not_sent(server: ScriptedServer, playground: PlaygroundPage) -> None:
    asked = server("never")
    playground.run("   ")
    expect(playground.page.get_by_role("alert")).to_contain_text("The prompt is empty")
    assert asked == []


def test_a_setting_out_of_range_is_named_and_nothing_is_sent(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    asked = server("never")
    playground.set(temperature=9)
    playground.run("x")
    expect(playground.page.get_by_role("alert")).to_contain_text("Temperature")
    assert asked == []


def test_a_run_sends_what_the_settings_say(server: ScriptedServer, playground: PlaygroundPage) -> None:
    asked = server("ok")
    playground.set(temperature=0.5, top_k=40, seed=7, max_tokens=9, stop_strings="END\n\\n\\n")
    playground.run("x = ")
    playground.wait_for_end()
    assert asked == [
        {
            "type": "start",
            "prompt": "x = ",
            "max_tokens": 9,
            "sampling": {
                "temperature": 0.5, "top_k": 40, "top_p": 0.95, "min_p": 0,
                "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "seed": 7,
            },
            "stop": ["END", "\n\n", "\n```"],
        }
    ]  # fmt: skip


def test_filling_in_sends_both_sides_of_the_cursor(server: ScriptedServer, page: Page) -> None:
    asked = server("total += value")
    playground = PlaygroundPage.open(page)
    page.get_by_label("Example").select_option(label="Fill in the middle")
    playground.run()
    playground.wait_for_end()
    assert asked[0]["prompt"] == "def mean(values: list[float]) -> float:\n"
    assert asked[0]["suffix"] == "\n    return total / len(values)\n"
    page.get_by_role("button", name="Insert into prompt").click()
    expect(playground.editor).to_contain_text("total += value    return total")
