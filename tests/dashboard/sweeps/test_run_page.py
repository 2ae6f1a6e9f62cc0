"""The page of one run of a sweep, and the fragment that keeps it live."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.models import Point, State, SweepRun
from dashboard.sweeps import lifecycle, services
from tests.dashboard import factories
from tests.dashboard.sweeps.test_services import work

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> SweepRun:
    return factories.run_of(factories.sweep())


def url(run: SweepRun, rest: str = "") -> str:
    return f"/dashboard/sweeps/{run.pk}/{rest}"


def test_page_of_a_waiting_run_says_what_it_waits_for(client: Client, run: SweepRun) -> None:
    page = client.get(url(run)).content.decode()
    assert "waiting for a Celery worker" in page and "0 of 2 points" in page


def test_page_of_an_active_run_reloads_itself_without_a_script(client: Client, run: SweepRun) -> None:
    refresh = '<noscript><meta http-equiv="refresh"'
    assert refresh in client.get(url(run)).content.decode()
    work(run)
    assert refresh not in client.get(url(run)).content.decode()


def test_finished_points_link_to_their_measurements(client: Client, run: SweepRun) -> None:
    work(run)
    page = client.get(url(run)).content.decode()
    for point in run.points.all():
        assert point.measurement.get_absolute_url() in page


def test_failed_point_shows_its_error_even_after_the_retry(client: Client, run: SweepRun) -> None:
    work(run, fail=frozenset({0}))
    services.retry_failed(run=run)
    work(run)
    page = client.get(url(run)).content.decode()
    assert "it burst" in page and "try 2" in page


def test_fragment_answers_not_modified_until_something_changes(client: Client, run: SweepRun) -> None:
    first = client.get(url(run, "live/"))
    again = client.get(url(run, "live/"), headers={"If-None-Match": first["ETag"]})
    lifecycle.begin_run(run_id=run.pk)
    changed = client.get(url(run, "live/"), headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, changed.status_code) == (304, 200)
    assert b"running" in changed.content and b"<html" not in changed.content


def test_page_says_that_nobody_looks_at_the_run(client: Client, run: SweepRun) -> None:
    lifecycle.begin_run(run_id=run.pk)
    before = client.get(url(run, "live/"))
    assert "Nobody has looked" not in before.content.decode()
    SweepRun.objects.update(heartbeat=timezone.now() - timedelta(seconds=20))
    after = client.get(url(run, "live/"), headers={"If-None-Match": before["ETag"]})
    assert after.status_code == 200 and "Nobody has looked" in after.content.decode()


def test_not_modified_costs_one_query(client: Client, run: SweepRun, django_assert_num_queries: Any) -> None:
    tag = client.get(url(run, "live/"))["ETag"]
    with django_assert_num_queries(1):
        assert client.get(url(run, "live/"), headers={"If-None-Match": tag}).status_code == 304


def test_tag_of_no_run_is_not_found(client: Client) -> None:
    headers = {"If-None-Match": '"None"'}
    assert client.get("/dashboard/sweeps/999/live/", headers=headers).status_code == 404


def test_remaining_time_is_judged_by_the_runs_own_points_where_nothing_else_is_known(
    client: Client, run: SweepRun
) -> None:
    lifecycle.begin_run(run_id=run.pk)
    point = lifecycle.next_point(run_id=run.pk)
    assert point is not None
    page = client.get(url(run))
    assert page.context["left"].known == 0 and "left" not in _run_line(page)
    lifecycle.finish_point(point=point, document=factories.document(), worker="w")
    now = timezone.now()
    Point.objects.filter(pk=point.pk).update(started=now - timedelta(seconds=7), ended=now)
    page = client.get(url(run))
    assert page.context["left"] == pytest.approx((7, 1, 1))
    assert "about 7\N{NO-BREAK SPACE}s left" in _run_line(page)


def _run_line(page: Any) -> str:
    found = re.search(r'<p class="run-line".*?</p>', page.content.decode(), re.DOTALL)
    assert found is not None
    return found[0]


def test_operator_cancels(as_operator: Client, run: SweepRun) -> None:
    assert b">Cancel<" in as_operator.get(url(run)).content
    as_operator.post(url(run, "cancel/"))
    run.refresh_from_db()
    assert run.state == State.CANCELLED


def test_operator_retries_only_what_failed(as_operator: Client, run: SweepRun) -> None:
    work(run, fail=frozenset({1}))
    assert b"Retry 1 failed point<" in as_operator.get(url(run)).content
    page = as_operator.post(url(run, "retry/"), follow=True).content.decode()
    assert "1 failed point queued again." in page
    assert run.points.filter(state=State.QUEUED).count() == 1


def test_cancel_of_an_ended_run_says_that_it_has_ended(as_operator: Client, run: SweepRun) -> None:
    work(run)
    assert b"has already ended" in as_operator.post(url(run, "cancel/"), follow=True).content


@pytest.mark.parametrize("verb", ["cancel/", "retry/"])
@pytest.mark.parametrize("who", ["client", "as_viewer"])
def test_verbs_without_the_permission_are_forbidden(
    run: SweepRun, verb: str, who: str, request: pytest.FixtureRequest
) -> None:
    client: Client = request.getfixturevalue(who)
    assert client.post(url(run, verb)).status_code == 403
    run.refresh_from_db()
    assert run.state == State.QUEUED


def test_exports_hold_every_point_with_its_error(client: Client, run: SweepRun) -> None:
    work(run, fail=frozenset({0}))
    found = client.get(f"/dashboard/sweeps/{run.pk}.json").json()
    assert (found["state"], [r["error"] for r in found["rows"]]) == ("failed", ["it burst", ""])
    assert client.get(f"/dashboard/sweeps/{run.pk}.csv").content.decode().count("\r\n") == 3


def test_unknown_run_is_not_found(client: Client) -> None:
    assert client.get("/dashboard/sweeps/999/").status_code == 404


@pytest.mark.slow
def test_number_of_queries_does_not_grow_with_the_points(
    client: Client, django_assert_max_num_queries: object
) -> None:
    run = factories.run_of(factories.sweep(context=list(range(1, 41))))
    work(run)
    with django_assert_max_num_queries(8):  # type: ignore[operator]
        client.get(url(run))
