"""Somebody with the right and no more than that starts a sweep from the page, and it is written down."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.stack import Stack
from tests.e2e.test_looks import breaches_of_wcag_aa, scrolls_sideways


@pytest.fixture
def ada(page: Page, loaded: Stack) -> Page:
    """Signed in from the page of sweeps, and back there."""
    page.goto("/dashboard/sweeps/")
    page.get_by_role("main").get_by_role("link", name="Sign in").last.click()
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("a password of ada's")
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{loaded.url}/dashboard/sweeps/")
    return page


def test_who_may_run_sweeps_starts_one_and_watches_it_end(ada: Page, loaded: Stack) -> None:
    with loaded.worker("sweeper", "--model", "words", "--backend", "paced", "--option", "tok_s=2000"):
        ada.get_by_role("button", name="Run now: tiny").click()
        expect(ada.get_by_role("heading", level=1)).to_contain_text("tiny")
        expect(ada.locator(".run-line .state")).to_have_text("finished", timeout=60_000)
    ada.get_by_role("cell").get_by_role("link").first.click()
    expect(ada.get_by_role("heading", level=1)).to_contain_text("tiny-llama on numpy")


def test_the_audit_log_says_who_started_what_and_fits_a_narrow_screen(ada: Page) -> None:
    ada.get_by_role("link", name="Audit log").click()
    expect(ada.get_by_role("row").filter(has_text="sweep started").first).to_be_visible()
    assert breaches_of_wcag_aa(ada) == []
    ada.set_viewport_size({"width": 320, "height": 700})
    assert not scrolls_sideways(ada)
