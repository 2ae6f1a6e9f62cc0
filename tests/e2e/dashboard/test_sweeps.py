"""Somebody with the right and no more than that starts a sweep from the page."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.e2e.stack import Stack


def test_who_may_run_sweeps_signs_in_starts_one_and_watches_it_end(page: Page, loaded: Stack) -> None:
    page.goto("/dashboard/sweeps/")
    page.get_by_role("main").get_by_role("link", name="Sign in").last.click()
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("a password of ada's")
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{loaded.url}/dashboard/sweeps/")
    with loaded.worker("sweeper", "--model", "words", "--backend", "paced", "--option", "tok_s=2000"):
        page.get_by_role("button", name="Run now: tiny").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("tiny")
        expect(page.locator(".run-line .state")).to_have_text("finished", timeout=60_000)
    page.get_by_role("cell").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("tiny-llama on numpy")
