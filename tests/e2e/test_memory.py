"""A page that is slower than the engine holds what it shows and little else, however much has streamed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, CDPSession

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.stack import Service

TOKENS = 12_000
SLOWER = 8
"""How many times slower than this machine the page runs."""
PEAK_MB, KEPT_MB = 24.0, 2.0


def heap_mb(devtools: CDPSession, *, collected: bool) -> float:
    if collected:
        devtools.send("HeapProfiler.collectGarbage")
    return float(devtools.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


@pytest.mark.nightly
def test_a_slow_tab_does_not_grow_with_what_streams_to_it(
    context: BrowserContext, playground: PlaygroundPage, paced: Callable[[int], Service]
) -> None:
    paced(5000)
    devtools = context.new_cdp_session(playground.page)
    playground.set(max_tokens=TOKENS)
    playground.run("hello")
    playground.wait_for_end()
    before = heap_mb(devtools, collected=True)
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    peak = before
    for _ in range(3):
        playground.run()
        while playground.page.locator("#output[data-state=running]").count():
            peak = max(peak, heap_mb(devtools, collected=False))
            playground.page.wait_for_timeout(50)
        assert playground.tokens == TOKENS
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    after = heap_mb(devtools, collected=True)
    print(f"{before:.1f} MB before, {peak:.1f} at most, {after:.1f} after")
    assert peak - before < PEAK_MB
    assert after - before < KEPT_MB
