"""An operator defines a sweep in the admin, starts it, and finds what it measured on the dashboard."""

from __future__ import annotations

import secrets

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import MODEL
from tests.e2e.stack import Stack

SWEEP_S = 240


@pytest.fixture
def operator(stack: Stack, page: Page) -> Page:
    """A page that is logged in to the admin."""
    name, password = f"operator-{secrets.token_hex(4)}", secrets.token_hex(12)
    stack.manage(
        "createsuperuser", "--noinput", "--username", name, "--email", "o@example.org",
        DJANGO_SUPERUSER_PASSWORD=password,
    )  # fmt: skip
    page.goto("/admin/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("link", name="Sweeps")).to_be_visible()
    return page


def define_sweep(page: Page, name: str) -> None:
    page.goto("/admin/dashboard/sweep/add/")
    page.get_by_label("Name:").fill(name)
    page.get_by_label("Repeats:").fill("5")
    page.get_by_label("Models:").fill(MODEL)
    page.get_by_role("checkbox", name="numpy").check()
    page.get_by_label("Context:").fill("16")
    page.get_by_label("Tokens:").fill("8")
    page.get_by_role("button", name="Save and continue editing").click()


@pytest.mark.usefixtures("worker")
def test_a_sweep_started_in_the_admin_shows_its_measurement_on_the_dashboard(operator: Page) -> None:
    define_sweep(operator, "two-minutes")
    operator.get_by_role("link", name="Run now").click()
    operator.get_by_role("button", name="Run now").click()
    expect(operator.get_by_role("heading", level=1)).to_contain_text("two-minutes")
    # The page follows the run by itself: nobody reloads it here.
    expect(operator.locator(".run-line .state")).to_have_text("finished", timeout=SWEEP_S * 1000)
    operator.get_by_role("cell").get_by_role("link").first.click()
    expect(operator.get_by_role("heading", level=1)).to_contain_text(f"{MODEL} on numpy")
    assert float(operator.locator(".figures .big").first.inner_text().replace(",", "")) > 0
    chart = operator.locator("svg.phases")
    expect(chart).to_be_visible()
    assert chart.locator("rect").count() >= 5
    operator.goto("/dashboard/runs/")
    expect(operator.get_by_role("row").filter(has_text=MODEL)).to_have_count(1)


def test_a_sweep_without_a_worker_says_so_and_can_be_cancelled(operator: Page) -> None:
    define_sweep(operator, "nobody-home")
    operator.get_by_role("link", name="Run now").click()
    operator.get_by_role("button", name="Run now").click()
    expect(operator.locator(".run-line .state")).to_have_text("running", timeout=30_000)
    expect(operator.locator(".run-label")).to_contain_text("worker", timeout=30_000)
    operator.get_by_role("button", name="Cancel").click()
    expect(operator.locator(".run-line .state")).to_have_text("cancelled", timeout=30_000)
