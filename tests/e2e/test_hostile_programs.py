"""Programs that mean harm end at their limits; the page answers meanwhile, and nothing leaves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import pytest
from playwright.sync_api import BrowserContext, Page

from tests.e2e.hostile_programs import FULL, SHORT
from tests.e2e.run_panel import RunPanel
from tests.waiting import PATIENCE_S, quickest

LIMIT_MS = 1000
MEMORY_MB = 64
GROWN_BYTES = 300e6
ANSWERS_S = 1.0
STATE = "document.getElementById('run-result').dataset.state"


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(FULL, id="full", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_hostile_programs_end_and_the_page_lives_on(
    context: BrowserContext,
    page: Page,
    complaints: list[str],
    programs: Mapping[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    asked: list[str] = []
    panel = RunPanel.open(page)
    panel.run("print('ready')\n")
    panel.wait_for("passed")
    page.locator("#run-time").select_option(str(LIMIT_MS))
    page.locator("#run-memory").select_option(str(MEMORY_MB))
    own = urlsplit(page.url).netloc
    context.on("request", lambda request: asked.append(request.url))
    before = memory_of_renderers()
    limit_s = ANSWERS_S if programs is FULL else PATIENCE_S
    for what, program in programs.items():
        slowest = quickest(partial(stand_still_s, panel, program), limit_s, tries=3)
        record_property("hostile", f"{what}: page answers within {slowest:.2f} s")
        assert slowest < limit_s, what
        assert len(panel.printed.inner_text() if panel.printed.count() else "") <= 64 * 1024, what
        assert memory_of_renderers() - before < GROWN_BYTES, what
    assert [url for url in asked if urlsplit(url).netloc not in ("", own)] == []
    panel.run("print('well')\n")
    panel.wait_for("passed")
    complaints.clear()  # of the browser, about what the programs tried


def stand_still_s(panel: RunPanel, program: str, _turn: int = 0) -> float:
    """Runs it to its end, or fails; returns the longest time in which the page did not answer."""
    page = panel.page
    page.evaluate(f"{STATE} = ''")
    panel.run(program)
    slowest, deadline = 0.0, time.monotonic() + PATIENCE_S
    while not page.evaluate(f"['passed', 'failed'].includes({STATE})"):
        assert time.monotonic() < deadline, f"it does not end: {program}"
        slowest = max(slowest, answer_s(page))
        time.sleep(0.05)
    return max(slowest, answer_s(page))


def answer_s(page: Page) -> float:
    began = time.monotonic()
    page.evaluate("() => new Promise((shown) => requestAnimationFrame(() => setTimeout(shown)))")
    return time.monotonic() - began


def memory_of_renderers() -> int:
    """Bytes of the browser's processes that show pages or run their programs."""
    return sum(process.memory_info().rss for process in _renderers())


def _renderers() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        try:
            if "--type=renderer" in process.cmdline():
                yield process
        except psutil.NoSuchProcess:
            continue
