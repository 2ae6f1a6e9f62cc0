"""What a person does in the tab "Run Python"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from playwright.sync_api import Locator, Page, expect

LOAD_MS = 30_000
"""For the first run: Pyodide is fetched, compiled, started."""


@dataclass(frozen=True)
class RunPanel:
    page: Page

    @classmethod
    def open(cls, page: Page) -> Self:
        page.goto("/")
        page.get_by_role("tab", name="Python").click()
        return cls(page)

    @property
    def headline(self) -> Locator:
        return self.page.locator("#run-headline")

    @property
    def outcomes(self) -> Locator:
        return self.page.get_by_role("list", name="Outcomes").get_by_role("listitem")

    @property
    def printed(self) -> Locator:
        return self.page.get_by_label("What the program printed")

    @property
    def program(self) -> str:
        return self._editor("Program to run").inner_text()

    def type(self, program: str, tests: str = "") -> None:
        for label, text in (("Program to run", program), ("Tests of the program", tests)):
            self._editor(label).click()
            self.page.keyboard.press("ControlOrMeta+a")
            self.page.keyboard.press("Delete")
            self.page.keyboard.insert_text(text)

    def run(self, program: str, tests: str = "") -> None:
        self.type(program, tests)
        self.page.keyboard.press("Alt+Enter")

    def wait_for(self, state: str, timeout_ms: int = LOAD_MS) -> None:
        expect(self.page.locator(f"#run-result[data-state={state}]")).to_be_attached(timeout=timeout_ms)

    def _editor(self, label: str) -> Locator:
        return self.page.get_by_role("textbox", name=label)
