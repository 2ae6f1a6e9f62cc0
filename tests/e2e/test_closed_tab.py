"""A run goes on without its page for as long as the operator allows, and is there when one comes back."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import BrowserContext, expect

from tests.e2e.conftest import watched
from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.stack import Service

TOK_S = 150
TOKENS = 600


def test_a_run_of_a_closed_tab_is_whole_in_the_next_one_and_in_its_history(
    context: BrowserContext,
    complaints: list[str],
    playground: PlaygroundPage,
    paced: Callable[[int], Service],
) -> None:
    paced(TOK_S)
    playground.set(max_tokens=TOKENS)
    playground.run("hello")
    playground.wait_for_tokens(50)
    playground.page.close(run_before_unload=True)
    later = PlaygroundPage.open(watched(context, complaints))
    later.wait_for_tokens(60)
    assert later.page.locator("#output[data-state=running]").count()
    later.page.close(run_before_unload=True)
    time.sleep(TOKENS / TOK_S)  # by now it has come to its end, with nobody there
    later = PlaygroundPage.open(watched(context, complaints))
    later.wait_for_end()
    assert later.tokens == TOKENS
    assert len(later.text.split()) + later.text.count("\n") == TOKENS
    later.show("History")
    expect(later.page.locator(".history-title")).to_have_text(["hello"])
