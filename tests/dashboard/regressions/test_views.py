"""The pages of regressions, and who may do what on them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from dashboard.models import Regression, RegressionStatus
from engine.timings import PhaseTime
from tests.dashboard import factories
from tests.dashboard.regressions.test_services import GOOD, history

pytestmark = pytest.mark.django_db
URL = "/dashboard/regressions/"


@pytest.fixture
def regression(db: None) -> Regression:
    history(*GOOD, 80, 81)
    return Regression.objects.get()


@pytest.fixture
def as_handler(db: None) -> Client:
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="can_handle_regression"))
    client = Client()
    client.force_login(user)
    return client


def url(regression: Regression, rest: str = "") -> str:
    return f"{URL}{regression.pk}/{rest}"


def test_list_shows_what_stands_with_change_threshold_and_commits(
    client: Client, regression: Regression
) -> None:
    page = client.get(URL).content.decode()
    assert "−19.0\N{NO-BREAK SPACE}%" in page and "threshold " in page
    assert regression.good_sha[:9] in page and regression.get_absolute_url() in page


def test_empty_lists_say_so(client: Client) -> None:
    assert "No regression is open." in client.get(URL).content.decode()
    assert "No regression has been closed." in client.get(URL, {"show": "closed"}).content.decode()
    assert client.get(URL, {"show": "secret"}).status_code == 404


def test_every_configuration_has_a_badge_also_for_too_little_data(
    client: Client, regression: Regression
) -> None:
    history(100, context=32)
    page = client.get(URL, {"show": "all"}).content.decode()
    assert "insufficient data" in page and "(1 point)" in page
    assert 'class="standing regression"' in page


def test_page_shows_the_points_and_which_lie_beyond(client: Client, regression: Regression) -> None:
    page = client.get(url(regression))
    assert [dot.beyond for dot in page.context["chart"].dots] == [False] * 5 + [True] * 2
    assert "Sign in" in page.content.decode() and "Acknowledge</button>" not in page.content.decode()


def test_page_shows_interval_phase_environment_and_commits_of_the_change(
    client: Client, settings: Any
) -> None:
    settings.REPO_URL = "https://example.org/monolane"
    history(*GOOD)
    slow = {"qkv": PhaseTime(2500.0, 200.0), "attention": PhaseTime(2000.0, 300.0, 400.0)}
    slow["gate_up"] = PhaseTime(9000.0)
    history(80, 80, start=5, environment={"python": "3.12"}, phases_us=slow)
    found = Regression.objects.get()
    page = client.get(url(found))
    evidence = page.context["evidence"]
    assert evidence.culprit.name == "gate_up"
    assert evidence.change.interval[1] < 0 and evidence.change.verdict == "worse"
    text = page.content.decode()
    assert "Not the same environment" in text and "3.11 → 3.12" in text
    assert f"?run={found.last_good_id}&amp;run={found.first_bad_id}" in text
    assert f"https://example.org/monolane/compare/{found.good_sha}...{found.bad_sha}" in text


def test_page_of_a_regression_whose_runs_are_gone_does_without_them(
    client: Client, regression: Regression
) -> None:
    regression.last_good = None
    regression.save()
    page = client.get(url(regression))
    assert page.context["evidence"] is None and page.status_code == 200


def test_page_lists_what_has_the_same_cause(client: Client, regression: Regression) -> None:
    history(*GOOD, 80, 80, context=32)
    other = Regression.objects.exclude(pk=regression.pk).get()
    assert other.get_absolute_url() in client.get(url(regression)).content.decode()
    assert regression.get_absolute_url() in client.get(url(other)).content.decode()


def test_handler_acknowledges_comments_and_accepts(as_handler: Client, regression: Regression) -> None:
    as_handler.post(url(regression, "comment/"), {"text": "<b>driver</b>"})
    as_handler.post(url(regression, "acknowledge/"))
    page = as_handler.get(url(regression)).content.decode()
    assert "&lt;b&gt;driver&lt;/b&gt;" in page and "acknowledged" in page
    as_handler.post(url(regression, "accept/"))
    regression.refresh_from_db()
    assert regression.fate == RegressionStatus.ACCEPTED
    assert "by ada" in as_handler.get(url(regression)).content.decode()


def test_refused_verb_says_why(as_handler: Client, regression: Regression) -> None:
    as_handler.post(url(regression, "accept/"))
    again = as_handler.post(url(regression, "accept/"), follow=True).content.decode()
    assert "already accepted as the new normal" in again
    empty = as_handler.post(url(regression, "comment/"), {"text": " "}, follow=True).content.decode()
    assert "The comment is empty" in empty


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["acknowledge/", "accept/", "comment/"])
@pytest.mark.parametrize("who", ["client", "as_viewer"])
def test_verbs_without_the_permission_are_forbidden(
    regression: Regression, verb: str, who: str, request: pytest.FixtureRequest
) -> None:
    client: Client = request.getfixturevalue(who)
    assert client.post(url(regression, verb), {"text": "x"}).status_code == 403
    regression.refresh_from_db()
    assert (regression.fate, regression.comments.count()) == (RegressionStatus.OPEN, 0)


@pytest.mark.parametrize("verb", ["acknowledge/", "accept/", "comment/"])
def test_verbs_are_no_links(as_handler: Client, regression: Regression, verb: str) -> None:
    assert as_handler.get(url(regression, verb)).status_code == 405


def test_unknown_regression_is_not_found(client: Client, as_handler: Client) -> None:
    assert client.get(f"{URL}999/").status_code == 404
    assert as_handler.post(f"{URL}999/accept/").status_code == 404


@pytest.mark.slow
def test_number_of_queries_does_not_grow(client: Client, django_assert_max_num_queries: Any) -> None:
    for context in range(1, 8):
        history(*GOOD, 80, 80, context=context)
    for show in ("standing", "closed", "all"):
        with django_assert_max_num_queries(4):
            client.get(URL, {"show": show})
    for day in range(10, 80):
        factories.stored(tok_s=80, day=day, context=1)
    with django_assert_max_num_queries(7):
        client.get(url(Regression.objects.order_by("pk")[0]))


def test_handler_pins_a_run_and_takes_the_pin_away(as_handler: Client, regression: Regression) -> None:
    run = regression.last_good
    assert run is not None
    as_handler.post(f"/dashboard/runs/{run.pk}/pin/")
    page = as_handler.get(run.get_absolute_url()).content.decode()
    assert "this run is pinned" in page and 'name="unpin"' in page
    as_handler.post(f"/dashboard/runs/{run.pk}/pin/", {"unpin": "1"})
    assert "none pinned" in as_handler.get(run.get_absolute_url()).content.decode()


def test_pinning_needs_the_permission(client: Client, regression: Regression) -> None:
    run = regression.last_good
    assert run is not None
    assert client.post(f"/dashboard/runs/{run.pk}/pin/").status_code in (302, 403)
    run.refresh_from_db()
    assert run.configuration.reference_id is None
