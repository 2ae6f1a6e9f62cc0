"""What the page does with text that no model here would write: a scripted server sends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, WebSocketRoute, expect

from tests.e2e.playground_page import PlaygroundPage

GENERATION = "0" * 32
WORKER = {
    "name": "scripted", "model": "scripted", "backend": "none", "devices": [], "state": "idle", "chat": True,
    "infill": True, "context": 4096, "parallelism": "none", "lanes": 1, "last_tok_s": 0.0,
}  # fmt: skip
TIMINGS = {
    "queue_ms": 0, "prefill_ms": 1, "ttft_ms": 1, "decode_ms": 10, "decode_tok_s": 100, "prompt_tokens": 1,
    "completion_tokens": 2,
}  # fmt: skip
Script = Callable[..., None]


@pytest.fixture
def server(context: BrowserContext) -> Script:
    """`server(text)` makes every run answer with that text; `server(error=...)` with that error."""
    answer: dict[str, Any] = {}
    asked: list[dict[str, Any]] = []

    def speak(route: WebSocketRoute) -> None:
        def say(**frame: Any) -> None:
            route.send(json.dumps({"generation": GENERATION, **frame}))

        def hear(message: str | bytes) -> None:
            frame = json.loads(message)
            if frame["type"] != "start":
                return
            asked.append(frame)
            if "error" in answer:
                route.send(json.dumps({"type": "error", **answer["error"]}))
                return
            text = answer["text"]
            say(type="queued", position=0, eta_s=0.0)
            say(
                type="started",
                model="scripted",
                backend="none",
                worker="s",
                prompt_tokens=1,
                queue_ms=0,
                seed=1,
            )
            say(type="tokens", seq=0, n=1, text=text[:1], t_us=0)
            say(type="tokens", seq=1, n=1, text=text[1:], t_us=10_000)
            say(type="done", finish_reason="stop", text="", timings=TIMINGS)

        route.on_message(hear)
        route.send(json.dumps({"type": "status", "workers": [WORKER]}))

    context.route_web_socket("**/ws/playground/", speak)

    def script(text: str = "", *, error: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        answer.clear()
        answer.update({"error": error} if error else {"text": text})
        return asked

    return script


def test_markup_in_the_output_is_text(server: Script, playground: PlaygroundPage) -> None:
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp; \u202e reversed"
    server(text)
    playground.run("x")
    playground.wait_for_end()
    assert playground.text == text
    assert playground.page.locator("#text img, #text script").count() == 0


def test_a_right_to_left_line_is_set_from_the_right(server: Script, playground: PlaygroundPage) -> None:
    server("שלום עולם")
    playground.run("x")
    playground.wait_for_end()
    line_left = """() => {
      const range = document.createRange();
      range.selectNodeContents(document.querySelector("#text .block"));
      const box = document.getElementById("text").getBoundingClientRect();
      return range.getBoundingClientRect().left - box.left;
    }"""
    playground.page.get_by_role("radio", name="Chat").check()  # an answer has no prompt before it
    playground.run("x")
    playground.wait_for_end()
    assert playground.page.evaluate(line_left) > 100


def test_copy_gives_the_exact_text_and_so_does_a_selection(
    server: Script, context: BrowserContext, playground: PlaygroundPage
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
    server: Script, playground: PlaygroundPage
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


def test_an_error_that_a_retry_cannot_mend_offers_none(server: Script, playground: PlaygroundPage) -> None:
    server(error={"code": "too_long", "message": "The prompt is too long.", "retryable": False})
    playground.run("x")
    expect(playground.page.get_by_role("alert")).to_contain_text("The prompt is too long.")
    expect(playground.page.get_by_role("button", name="Try again")).to_be_hidden()


def test_an_empty_prompt_is_not_sent(server: Script, playground: PlaygroundPage) -> None:
    asked = server("never")
    playground.run("   ")
    expect(playground.page.get_by_role("alert")).to_contain_text("The prompt is empty")
    assert asked == []


def test_a_setting_out_of_range_is_named_and_nothing_is_sent(
    server: Script, playground: PlaygroundPage
) -> None:
    asked = server("never")
    playground.set(temperature=9)
    playground.run("x")
    expect(playground.page.get_by_role("alert")).to_contain_text("Temperature")
    assert asked == []


def test_a_run_sends_what_the_settings_say(server: Script, playground: PlaygroundPage) -> None:
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
                "repetition_penalty": 1, "seed": 7,
            },
            "stop": ["END", "\n\n"],
        }
    ]  # fmt: skip


def test_filling_in_sends_both_sides_of_the_cursor(server: Script, page: Page) -> None:
    asked = server("total += value")
    playground = PlaygroundPage.open(page)
    page.get_by_label("Example").select_option(label="Fill in the middle")
    playground.run()
    playground.wait_for_end()
    assert asked[0]["prompt"] == "def mean(values: list[float]) -> float:\n"
    assert asked[0]["suffix"] == "\n    return total / len(values)\n"
    page.get_by_role("button", name="Insert into prompt").click()
    expect(playground.editor).to_contain_text("total += value    return total")


def test_a_chat_sends_the_system_message_before_the_user_s(
    server: Script, playground: PlaygroundPage
) -> None:
    asked = server("```python\nprint(1)\n```\n")
    playground.page.get_by_role("radio", name="Chat").check()
    playground.set(system="Be brief.")
    playground.run("Print one.")
    playground.wait_for_end()
    assert asked[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Print one."},
    ]
    assert "prompt" not in asked[0]
