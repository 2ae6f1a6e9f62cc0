"""A browser, a running product, and pages that fail the test when they log an error.

Run on its own (`pytest tests/e2e`): Playwright's synchronous API keeps an event loop running.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.scripted import ScriptedServer
from tests.e2e.stack import ROOT, Service, Stack, running_stack
from tools.browser import find_chromium

SCREENSHOTS = Path(os.environ.get("MONOLANE_HOME") or ROOT / "var") / "screenshots"
MODEL = "smollm2-135m"
LINE = 12
"""Tokens of a line of paced text, about as many as a line of code has."""
EXPECT_MS = 15_000
"""How long a condition may take to come true: a machine may be busy with something else."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program."""
    found = find_chromium()
    if found is None or not Path(found).exists():
        pytest.fail(
            "the browser tests need Chromium: install it (`make setup-dev`), or set CHROMIUM to its path"
        )
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=EXPECT_MS)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything but a worker."""
    if not (ROOT / "static/dist/playground.js").exists():
        pytest.fail("the front end is not built: run `npm ci && npm run build`")
    with running_stack(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_worker_unasked(request: pytest.FixtureRequest) -> None:
    """Ends the worker that tests share, unless the test asks for it or plays the server itself."""
    if "stack" in request.fixturenames and not {"worker", "server"} & set(request.fixturenames):
        request.getfixturevalue("stack").end_shared_worker()


@pytest.fixture
def worker(stack: Stack) -> Iterator[Service]:
    """A worker with the model that everybody gets; the next test that asks gets the same one if it lives."""
    service = stack.shared_worker("--model", MODEL)
    yield service
    if not service.running:
        stack.end_shared_worker()


@pytest.fixture
def paced(stack: Stack) -> Iterator[Callable[[int], Service]]:
    """Starts a worker that emits words at a given number of tokens a second and computes nothing."""
    options = ("--option", f"line={LINE}", "--option")
    with stack.workers() as add:
        yield lambda tok_s: add("paced", "--model", "words", "--backend", "paced", *options, f"tok_s={tok_s}")


@pytest.fixture
def reciting(stack: Stack) -> Iterator[Callable[[int], Service]]:
    """Starts a worker that answers every message in Markdown, at a given number of tokens a second."""
    with stack.workers() as add:
        yield lambda tok_s: add(
            "reciting", "--model", "markdown", "--backend", "paced", "--option", f"tok_s={tok_s}"
        )


@pytest.fixture
def context(browser: Browser, stack: Stack) -> Iterator[BrowserContext]:
    opened = browser.new_context(base_url=stack.url, viewport={"width": 1280, "height": 800})
    opened.set_default_timeout(30_000)
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext, complaints: list[str]) -> Page:
    return watched(context, complaints)


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What pages logged as errors, a breach of the content security policy among them; must stay empty."""
    heard: list[str] = []
    yield heard
    assert heard == []


@pytest.fixture
def playground(page: Page) -> PlaygroundPage:
    """The playground, opened, whether or not there is a worker."""
    return PlaygroundPage.open(page)


@pytest.fixture
def server(context: BrowserContext) -> ScriptedServer:
    """Must be asked for before the page."""
    scripted = ScriptedServer()
    scripted.serve(context)
    return scripted


def watched(context: BrowserContext, complaints: list[str]) -> Page:
    """A new page whose errors are written to `complaints`."""

    def hear(message: ConsoleMessage) -> None:
        # A socket that the test itself breaks is logged by the browser, not by the page.
        if message.type == "error" and "WebSocket" not in message.text:
            complaints.append(message.text)

    opened = context.new_page()
    opened.on("console", hear)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    return opened
