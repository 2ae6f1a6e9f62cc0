"""What a person does on the playground page, in the page's own terms."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from playwright.sync_api import Locator, Page, expect

TEXT = "[...document.querySelectorAll('#text .block')].map(block => block.textContent).join('')"


def wait_until(page: Page, holds: Callable[[], bool], timeout_s: float = 30) -> bool:
    """Whether `holds` came true in time. The page's security policy forbids Playwright's own polling."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        page.wait_for_timeout(20)
    return True


@dataclass(frozen=True)
class PlaygroundPage:
    page: Page

    @classmethod
    def open(cls, page: Page, *, ghost: bool = False) -> Self:
        """`ghost`: with ghost text, as a new visitor has it; else the engine is for the test's runs alone."""
        if not ghost:
            page.add_init_script("try { localStorage.setItem('monolane.ghost', 'false') } catch {}")
        page.goto("/")
        page.wait_for_selector("#editor .cm-content")
        return cls(page)

    @property
    def run_button(self) -> Locator:
        return self.page.get_by_role("button", name="Run", exact=True)

    @property
    def stop_button(self) -> Locator:
        return self.page.get_by_role("button", name="Stop")

    @property
    def editor(self) -> Locator:
        return self.page.locator("#editor .cm-content")

    @property
    def fate(self) -> Locator:
        return self.page.locator("#fate-text")

    @property
    def text(self) -> str:
        """The output, exactly."""
        return str(self.page.evaluate(TEXT))

    @property
    def tokens(self) -> int:
        shown = self.page.locator("#meter-tokens").inner_text().replace(",", "")
        return int(shown) if shown.isdecimal() else 0

    def type_prompt(self, text: str) -> None:
        self.editor.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.insert_text(text)

    def set(self, **values: str | int | float) -> None:
        """Fills settings by their form names."""
        if self.page.locator("#settings").is_hidden():
            self.page.get_by_role("button", name="Settings").click()
        for name, value in values.items():
            self.page.locator(f"#controls [name={name}]").fill(str(value))

    def wait_until_ready(self) -> None:
        expect(self.run_button).to_be_enabled(timeout=60_000)

    def run(self, prompt: str | None = None) -> None:
        self.wait_until_ready()
        if prompt is not None:
            self.type_prompt(prompt)
        self.page.keyboard.press("ControlOrMeta+Enter")

    def wait_for_tokens(self, at_least: int, timeout_s: float = 60) -> None:
        if not wait_until(self.page, lambda: self.tokens >= at_least, timeout_s):
            raise AssertionError(f"{self.tokens} tokens after {timeout_s:g} s; {self.fate.inner_text()}")

    def show(self, tab: str) -> None:
        self.page.get_by_role("tab", name=tab).click()

    def ask(self, question: str) -> None:
        """Sends a message in the chat."""
        self.wait_until_ready()
        self.show("Chat")
        self.page.get_by_label("Your message").fill(question)
        self.page.get_by_role("button", name="Send").click()

    @property
    def answers(self) -> Locator:
        return self.page.locator(".turn[data-role=assistant]")

    def wait_for_answer(self, timeout_s: float = 120) -> None:
        newest = self.page.locator(".turn[data-role=assistant][aria-busy=false]:last-child")
        newest.wait_for(timeout=timeout_s * 1000)

    def wait_for_end(self, timeout_s: float = 120) -> None:
        self.page.wait_for_selector("#output[data-state=over]", timeout=timeout_s * 1000)
