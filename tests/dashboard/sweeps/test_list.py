"""The page of sweeps: what there is, and starting one."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.models import Sweep, SweepRun
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/sweeps/"
START = "/dashboard/sweeps/start/"


def test_presets_are_listed_before_anything_has_run(client: Client) -> None:
    page = client.get(URL).content.decode()
    assert "cpu-quick" in page and "Nothing has run yet" in page


def test_visitor_sees_no_button_and_is_told_how_to_get_one(client: Client) -> None:
    page = client.get(URL).content.decode()
    assert "Run now" not in page and "Sign in" in page


def test_account_without_the_permission_is_told_what_is_missing(as_viewer: Client) -> None:
    page = as_viewer.get(URL).content.decode()
    assert "Run now" not in page and "Can start, cancel and retry sweeps" in page


def test_operator_starts_a_sweep_and_lands_on_its_run(as_operator: Client) -> None:
    sweep = factories.sweep()
    response = as_operator.post(START, {"sweep": sweep.name})
    run = SweepRun.objects.get()
    assert response["Location"] == run.get_absolute_url()
    assert (run.trigger, run.who.get_username() if run.who else "") == ("page", "operator")


def test_second_click_starts_nothing_and_says_why(as_operator: Client) -> None:
    factories.run_of(factories.sweep())
    page = as_operator.post(START, {"sweep": "test-sweep"}, follow=True).content.decode()
    assert SweepRun.objects.count() == 1
    assert "is already queued" in page and ">Watch<" in page


@pytest.mark.parametrize("who", ["client", "as_viewer"])
def test_start_without_the_permission_is_forbidden(who: str, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(who)
    assert client.post(START, {"sweep": factories.sweep().name}).status_code == 403
    assert not SweepRun.objects.exists()


def test_start_by_following_a_link_is_refused(as_operator: Client) -> None:
    assert as_operator.get(START, {"sweep": "cpu-quick"}).status_code == 405


def test_start_from_another_site_is_refused(as_operator: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = as_operator.cookies
    assert strict.post(START, {"sweep": "cpu-quick"}).status_code == 403


def test_unknown_sweep_is_not_found(as_operator: Client) -> None:
    assert as_operator.post(START, {"sweep": "nothing"}).status_code == 404


def test_null_character_never_reaches_the_database(as_operator: Client) -> None:
    with CaptureQueriesContext(connection) as captured:
        assert as_operator.post(START, {"sweep": "noth\0ing"}).status_code == 404
    assert any("nothing" in query["sql"] for query in captured)
    assert not any("\0" in query["sql"] for query in captured)


def test_page_without_any_sweep_says_how_to_get_one(client: Client) -> None:
    Sweep.objects.all().delete()
    assert b"No sweep is defined" in client.get(URL).content
