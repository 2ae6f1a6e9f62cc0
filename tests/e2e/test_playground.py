"""The playground as a person uses it, on the real model."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.stack import Service

pytestmark = pytest.mark.usefixtures("worker")
DURATION = re.compile(r"[0-9.]+ m?s")
PROMPT = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):"


def test_a_prompt_is_run_and_its_tokens_arrive_one_after_the_other(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=48)
    playground.run(PROMPT)
    playground.wait_for_tokens(4)
    early = playground.text
    playground.wait_for_end()
    assert playground.text.startswith(early)
    assert len(playground.text) > len(early)
    assert "self.items.append(item)" in playground.text
    assert playground.tokens == 48
    expect(playground.fate).to_contain_text("Stopped at 48 tokens. smollm2-135m on")


def test_the_figures_are_the_worker_s_and_the_page_s_apart(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=32)
    playground.run(PROMPT)
    playground.wait_for_end()
    playground.page.get_by_text("Timing", exact=True).click()
    cell = playground.page.locator
    assert float(cell("#meter-rate").inner_text().replace(",", "")) > 0
    assert float(cell("#meter-overall").inner_text().split()[0].replace(",", "")) > 0
    assert cell("#meter-ttft").inner_text().endswith("s")
    for part in ("queue", "tokenizer", "prefill", "launch", "publish", "network"):
        expect(cell(f"#first-token dl [data-part={part}] dd")).to_have_text(DURATION)


def test_stop_keeps_the_text_that_came_before(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=1500)
    playground.run(PROMPT)
    playground.wait_for_tokens(8)
    playground.page.keyboard.press("Escape")
    playground.wait_for_end(20)
    expect(playground.fate).to_contain_text("Stopped.")
    assert playground.text.startswith("\n        self.items.append(item)")
    assert 8 <= playground.tokens < 1500
    expect(playground.run_button).to_be_enabled()


def test_a_reload_in_mid_stream_goes_on_without_gap_or_double(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=160)
    playground.run(PROMPT)
    playground.wait_for_tokens(30)
    playground.page.reload()
    playground.wait_for_end()
    reloaded = playground.text
    assert playground.tokens == 160
    playground.run()
    playground.wait_for_end()
    assert reloaded == playground.text


def test_a_reload_after_the_end_shows_the_text_again(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=24)
    playground.run(PROMPT)
    playground.wait_for_end()
    before = playground.text
    playground.page.reload()
    playground.wait_for_end()
    assert playground.text == before
    assert playground.tokens == 24


def test_a_worker_killed_in_mid_stream_comes_back_and_goes_on(
    playground: PlaygroundPage, worker: Service
) -> None:
    playground.set(temperature=0, max_tokens=160)
    playground.run(PROMPT)
    playground.wait_for_tokens(30)
    worker.kill()
    worker.start()
    playground.wait_for_end()
    interrupted = playground.text
    assert playground.tokens == 160
    playground.run()
    playground.wait_for_end()
    assert interrupted == playground.text


def test_an_example_fills_the_editor_and_undo_brings_the_old_prompt_back(playground: PlaygroundPage) -> None:
    playground.wait_until_ready()
    playground.type_prompt("my own prompt")
    playground.page.get_by_label("Example").select_option(label="Python: Fibonacci")
    expect(playground.editor).to_contain_text("def fibonacci(n):")
    playground.page.keyboard.press("ControlOrMeta+z")
    expect(playground.editor).to_contain_text("my own prompt")


def test_prompt_and_settings_are_there_again_after_a_reload(playground: PlaygroundPage) -> None:
    playground.set(temperature=0.7, stop_strings="END")
    playground.type_prompt("remember me")
    playground.page.reload()
    expect(playground.editor).to_contain_text("remember me")
    assert playground.page.locator("[name=temperature]").input_value() == "0.7"
    assert playground.page.locator("[name=stop_strings]").input_value() == "END"
    playground.page.get_by_role("button", name="Reset").click()
    assert playground.page.locator("[name=temperature]").input_value() == "0.2"


def test_a_stop_string_ends_the_text_before_it(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=100, stop_strings="append")
    playground.run(PROMPT)
    playground.wait_for_end()
    assert playground.text.strip() == "self.items."
    expect(playground.fate).to_contain_text("Finished.")


def test_the_seed_of_a_run_can_be_kept(playground: PlaygroundPage) -> None:
    playground.set(temperature=1.5, max_tokens=24)
    playground.run(PROMPT)  # from here on the prompt is kept: a cold run may draw another token at a near tie
    playground.wait_for_end()
    playground.run()
    playground.wait_for_end()
    first = playground.text
    playground.page.get_by_role("button", name="Reuse seed").click()
    playground.run()
    playground.wait_for_end()
    assert playground.text == first


def test_output_can_be_inserted_into_the_prompt(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=10)
    playground.run(PROMPT)
    playground.wait_for_end()
    playground.page.get_by_role("button", name="Insert into prompt").click()
    expect(playground.editor).to_contain_text("def push(self, item):")
    expect(playground.editor).to_contain_text("self.items.append(item)")


def test_output_can_be_downloaded(playground: PlaygroundPage) -> None:
    playground.set(temperature=0, max_tokens=10)
    playground.run(PROMPT)
    playground.wait_for_end()
    with playground.page.expect_download() as download:
        playground.page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "monolane.py"
    assert download.value.path().read_text() == playground.text


def test_a_prompt_beyond_the_model_s_context_is_refused_in_words(playground: PlaygroundPage) -> None:
    playground.run("token " * 9000)
    problem = playground.page.get_by_role("alert")
    expect(problem).to_be_visible()
    expect(problem).to_contain_text("tokens")
