"""The loop that has the model correct a program, with a model that answers as the test says."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, WebSocketRoute, expect

from tests.e2e.conftest import SCREENSHOTS
from tests.e2e.run_panel import RunPanel
from tests.e2e.test_looks import serious_violations

WRONG = "def double(n):\n    return n + 3\n"
STILL_WRONG = "def double(n):\n    return n + 2\n"
RIGHT = "def double(n):\n    return n * 2\n"
TEST = "def test_double():\n    assert double(2) == 4\n    assert double(5) == 10\n"
WORKER = {
    "name": "scripted", "model": "scripted", "backend": "none", "devices": [], "state": "idle", "chat": True,
    "infill": False, "context": 4096, "parallelism": "none", "lanes": 1, "last_tok_s": 0.0,
}  # fmt: skip
TIMINGS = {
    "queue_ms": 0, "prefill_ms": 1, "ttft_ms": 1, "decode_ms": 10, "decode_tok_s": 100, "prompt_tokens": 1,
    "completion_tokens": 1,
}  # fmt: skip


class Model:
    """Answers each question with the next of its answers; after the last one it never ends."""

    def __init__(self, context: BrowserContext) -> None:
        self.answers: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self._ids = itertools.count()
        context.route_web_socket("**/ws/playground/", self._meet)

    def _meet(self, route: WebSocketRoute) -> None:
        generation = ""

        def say(**frame: Any) -> None:
            route.send(json.dumps({"generation": generation, **frame}))

        def hear(message: str | bytes) -> None:
            nonlocal generation
            frame = json.loads(message)
            if frame["type"] == "stop":
                say(type="done", finish_reason="cancelled", text="", timings=TIMINGS)
            if frame["type"] != "start":
                return
            self.asked.append(frame)
            generation = f"{next(self._ids):032x}"
            say(type="queued", position=0, eta_s=0.0)
            say(
                type="started", model="scripted", backend="none", worker="s", prompt_tokens=1, queue_ms=0,
                seed=1,
            )  # fmt: skip
            say(type="tokens", seq=0, n=7, text=self.answers[0] if self.answers else "Hm", t_us=0)
            if self.answers:
                self.answers.pop(0)
                say(type="done", finish_reason="stop", text="", timings=TIMINGS)

        route.on_message(hear)
        route.send(json.dumps({"type": "status", "workers": [WORKER]}))


@pytest.fixture
def model(context: BrowserContext) -> Model:
    """Must be asked for before the page."""
    return Model(context)


@pytest.fixture
def failed(model: Model, page: Page) -> RunPanel:
    """The panel after a program that fails its test."""
    panel = RunPanel.open(page)
    expect(page.get_by_role("button", name="Fix it")).to_be_disabled()
    panel.run(WRONG, TEST)
    panel.wait_for("failed")
    return panel


def answer(program: str) -> str:
    return f"The sum is wrong:\n```python\n{program}```\nThat is all."


def test_failures_go_to_the_model_until_its_program_passes(model: Model, failed: RunPanel) -> None:
    page = failed.page
    model.answers = [answer(STILL_WRONG), answer(RIGHT)]
    page.get_by_role("button", name="Fix it").click()
    expect(failed.headline).to_contain_text("It passes now. The test passed in", timeout=30_000)
    steps = page.locator("#run-step-list li")
    expect(steps).to_have_count(2)
    expect(steps.nth(0)).to_contain_text("7 tokens in")
    expect(steps.nth(0)).to_contain_text("0 of 1 test passed")
    expect(page.locator("#run-clock")).to_contain_text("Step 2 of 3 · 14 tokens · ")
    expect(page.locator("#announcer")).to_contain_text("It passes now.")
    assert failed.program.rstrip() == RIGHT.rstrip()
    page.screenshot(path=SCREENSHOTS / "run-it-fixed.png", full_page=True)
    assert serious_violations(page) == []
    first, second = (asked["messages"][0]["content"] for asked in model.asked)
    assert WRONG.strip() in first
    assert "double(2) is 5" in first
    assert STILL_WRONG.strip() in second
    assert "double(5) is 7" in second


def test_a_model_that_repeats_itself_is_not_asked_again(model: Model, failed: RunPanel) -> None:
    model.answers = [answer(WRONG)]
    failed.page.get_by_role("button", name="Fix it").click()
    expect(failed.headline).to_contain_text("The model returned a program that was tried already")
    assert len(model.asked) == 1


def test_the_loop_gives_up_when_its_steps_are_used(model: Model, failed: RunPanel) -> None:
    page = failed.page
    page.get_by_label("in up to").fill("1")
    model.answers = [answer(STILL_WRONG)]
    page.get_by_role("button", name="Fix it").click()
    expect(failed.headline).to_contain_text("It still fails: no steps are left. 0 of 1 test passed")
    assert failed.program.rstrip() == WRONG.rstrip()


def test_the_loop_stops_while_the_model_writes_and_leaves_the_program(model: Model, failed: RunPanel) -> None:
    page = failed.page
    page.get_by_role("button", name="Fix it").click()
    expect(page.get_by_label("What the model writes")).to_have_text("Hm")
    page.keyboard.press("Escape")
    expect(failed.headline).to_contain_text("Stopped.")
    assert failed.program.rstrip() == WRONG.rstrip()
    expect(page.get_by_role("button", name="Fix it")).to_be_enabled()
