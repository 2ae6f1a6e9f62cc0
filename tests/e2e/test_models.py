"""Several models, of several workers or of one: what is asked of one is answered by that one."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.e2e.conftest import MODEL
from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.stack import Stack

PACED = ("--backend", "paced", "--option", "tok_s=2000")
TIMES = 4
"""Of two workers, a lottery would choose the right one each time in 1 of 16 test runs."""


def test_runs_and_questions_go_to_a_worker_that_has_the_model(
    stack: Stack, playground: PlaygroundPage
) -> None:
    page = playground.page
    with stack.workers() as add:
        add("words", "--model", "words", *PACED)
        add("chatty", "--model", MODEL, *PACED)
        page.locator("#model option").nth(2).wait_for(state="attached", timeout=60_000)
        playground.set(max_tokens=8, answer_tokens=8)
        page.get_by_label("Model", exact=True).select_option(MODEL)
        for _ in range(TIMES):
            playground.run("hello")
            playground.wait_for_end()
            expect(playground.fate).to_contain_text(f"{MODEL} on paced")
        page.get_by_label("Model", exact=True).select_option(label="Whichever is free")
        for number in range(1, TIMES + 1):
            playground.ask("Hello?")  # only one of the two can chat
            expect(playground.answers).to_have_count(number)
            playground.wait_for_answer()
            expect(playground.fate).to_contain_text(f"{MODEL} on paced")


def test_one_worker_changes_between_models_without_a_restart(
    stack: Stack, playground: PlaygroundPage
) -> None:
    page = playground.page
    model = page.get_by_label("Model", exact=True)
    with stack.workers() as add:
        add("both", "--model", "words", "--model", "markdown", *PACED)
        model.locator("option", has_text="markdown (is loaded first)").wait_for(
            state="attached", timeout=60_000
        )
        playground.set(max_tokens=8)
        for name in ("markdown", "words", "markdown"):
            model.select_option(name)
            playground.run("hello")
            playground.wait_for_end()
            expect(playground.fate).to_contain_text(f"{name} on paced")
        expect(model.locator("option")).to_have_text(["Whichever is free", "markdown", "words"])
        listed = page.request.get(f"{stack.url}/v1/models").json()["data"]
        assert {each["id"]: (each["chat"], each["loaded"]) for each in listed} == {
            "markdown": (True, True),
            "words": (False, True),
        }
