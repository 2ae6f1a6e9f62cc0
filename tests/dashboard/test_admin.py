"""The admin: the matrix as a form, its preview, the buttons, and who may press them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django_celery_beat.models import PeriodicTask

from dashboard.models import AuditEntry, Measurement, State, Sweep, SweepRun
from dashboard.sweeps import definitions, services
from tests.dashboard import factories
from tests.dashboard.sweeps.test_services import work

pytestmark = pytest.mark.django_db
FORM = {
    "name": "nightly",
    "description": "",
    "models": "random:tiny-llama\nsmollm2-135m",
    "backends": ["numpy", "cpu"],
    "devices": "1",
    "context": "8, 16",
    "tokens": "8",
    "sampling": "greedy\ntemperature=0.8 top_k=40",
    "repeats": "5",
    "schedule_crontab": "30 2 * * *",
    "schedule_enabled": "on",
}
ADD = "/admin/dashboard/sweep/add/"
PREVIEW = "/admin/dashboard/sweep/preview/"


def test_form_becomes_a_sweep_with_its_matrix_and_schedule(as_admin: Client) -> None:
    assert as_admin.post(ADD, FORM).status_code == 302
    sweep = Sweep.objects.get(name="nightly")
    assert sweep.matrix == {
        "model": ["random:tiny-llama", "smollm2-135m"],
        "backend": ["numpy", "cpu"],
        "devices": [1],
        "context": [8, 16],
        "tokens": [8],
        "sampling": [{}, {"temperature": 0.8, "top_k": 40}],
    }
    assert sweep.crontab == "30 2 * * *"


def test_form_names_ways_to_synchronise_and_shows_them_again(as_admin: Client) -> None:
    asked = {**FORM, "backends": ["cpu"], "sync": ["barrier"]}
    as_admin.post(ADD, asked)
    sweep = Sweep.objects.get(name="nightly")
    assert sweep.matrix["sync"] == ["barrier"]
    url = f"/admin/dashboard/sweep/{sweep.pk}/change/"
    assert as_admin.get(url).context["adminform"].form["sync"].value() == ["barrier"]
    assert as_admin.post(PREVIEW, asked).content.decode().count("<td>barrier</td>") == 8


def test_saved_sweep_fills_its_form_again(as_admin: Client) -> None:
    as_admin.post(ADD, FORM)
    url = f"/admin/dashboard/sweep/{Sweep.objects.get(name='nightly').pk}/change/"
    form = as_admin.get(url).context["adminform"].form
    again = {name: form[name].value() for name in FORM if name not in ("schedule_enabled",)}
    assert {**again, "devices": "1", "context": "8, 16", "tokens": "8", "repeats": "5"} == {
        **{k: v for k, v in FORM.items() if k != "schedule_enabled"},
        "sampling": again["sampling"],
    }
    assert as_admin.post(url, {**FORM, "sampling": form.fields["sampling"].prepare_value(again["sampling"])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": "../x"}, "give a model"),
        ({"context": "8 x"}, "is not a whole number"),
        ({"context": "0"}, "context is 0; allowed are"),
        ({"tokens": ""}, "This field is required"),
        ({"backends": []}, "This field is required"),
        ({"sampling": "hot"}, "is not NAME=NUMBER"),
        ({"sampling": "temperature=99"}, "temperature is 99"),
        ({"sampling": "top_k=1.5"}, "is not NAME=NUMBER"),
        ({"sampling": "__class__=1"}, "is not NAME=NUMBER"),
        ({"sync": ["mailbox"]}, "the backend numpy has no choice of it"),
        ({"repeats": "2"}, "repeats is 2; allowed are 5 to 100"),
        ({"schedule_crontab": "every night"}, "it needs five"),
        ({"context": ",".join(map(str, range(1, 101)))}, "800 points; a sweep takes at most 500"),
    ],
)
def test_wrong_form_is_answered_with_the_field_and_the_value(
    as_admin: Client, change: dict[str, Any], message: str
) -> None:
    response = as_admin.post(ADD, {**FORM, **change})
    assert response.status_code == 200
    assert message in response.content.decode()
    assert not Sweep.objects.filter(name="nightly").exists()


def test_preview_lists_the_points_without_saving_anything(as_admin: Client) -> None:
    page = as_admin.post(PREVIEW, FORM).content.decode()
    assert "16 points" in page and page.count("t=0.8 top_k=40") == 8
    assert "its time is not known" in page
    assert not Sweep.objects.filter(name="nightly").exists()


def test_preview_says_how_many_streams_a_point_has(as_admin: Client) -> None:
    page = as_admin.post(PREVIEW, {**FORM, "streams": "1,4"}).content.decode()
    assert page.count("default</td><td>4</td>") == page.count("default</td><td>1</td>") == 16


def test_preview_of_a_wrong_matrix_names_the_problem(as_admin: Client) -> None:
    page = as_admin.post(PREVIEW, {**FORM, "context": "0"}).content.decode()
    assert "context is 0" in page and "<tbody>" not in page


def test_preview_estimates_by_points_that_ran_before(as_admin: Client) -> None:
    work(factories.run_of(factories.sweep()))
    form = {**FORM, "models": "random:tiny-llama", "backends": ["numpy"], "sampling": "greedy"}
    assert "by what they took before" in as_admin.post(PREVIEW, form).content.decode()


def test_preview_is_for_those_who_may_define_sweeps(as_operator: Client) -> None:
    assert as_operator.post(PREVIEW, FORM).status_code == 403


def test_run_now_asks_first_then_starts_and_leaves_a_log_entry(as_operator: Client, operator: User) -> None:
    sweep = factories.sweep()
    url = f"/admin/dashboard/sweep/{sweep.pk}/run/"
    assert "2 points" in as_operator.get(url).content.decode()
    assert not SweepRun.objects.exists()
    response = as_operator.post(url)
    run = SweepRun.objects.get()
    assert response["Location"] == run.get_absolute_url()
    entry = AuditEntry.objects.get(who=operator)
    assert (entry.act, entry.url) == ("sweep started", run.get_absolute_url())


def test_run_now_of_a_running_sweep_says_so(as_operator: Client) -> None:
    run = factories.run_of(factories.sweep())
    page = as_operator.post(f"/admin/dashboard/sweep/{run.sweep_id}/run/", follow=True).content.decode()
    assert "is already queued" in page
    assert SweepRun.objects.count() == 1


def test_action_starts_every_selected_sweep(as_operator: Client) -> None:
    keys = [factories.sweep("one").pk, factories.sweep("two").pk]
    data = {"action": "run_now", "_selected_action": keys}
    page = as_operator.post("/admin/dashboard/sweep/", data, follow=True).content.decode()
    assert SweepRun.objects.count() == 2
    assert page.count("Started <a href=") == 2


def test_viewer_has_no_button_no_action_and_no_right(as_viewer: Client) -> None:
    sweep = factories.sweep()
    assert b"Run now" not in as_viewer.get(f"/admin/dashboard/sweep/{sweep.pk}/change/").content
    assert b"run_now" not in as_viewer.get("/admin/dashboard/sweep/").content
    assert as_viewer.post(f"/admin/dashboard/sweep/{sweep.pk}/run/").status_code == 403
    as_viewer.post("/admin/dashboard/sweep/", {"action": "run_now", "_selected_action": [sweep.pk]})
    assert not SweepRun.objects.exists()


def test_operator_may_run_but_not_define(as_operator: Client) -> None:
    assert as_operator.get(ADD).status_code == 403


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_verbs_on_a_run_need_a_post_and_the_permission(
    as_viewer: Client, as_operator: Client, verb: str
) -> None:
    run = factories.run_of(factories.sweep())
    url = f"/admin/dashboard/sweeprun/{run.pk}/{verb}/"
    assert as_viewer.post(url).status_code == 403
    assert as_operator.get(url).status_code == 403
    run.refresh_from_db()
    assert run.state == State.QUEUED


def test_cancel_and_retry_from_the_admin(as_operator: Client) -> None:
    run = factories.run_of(factories.sweep())
    as_operator.post(f"/admin/dashboard/sweeprun/{run.pk}/cancel/")
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    other = factories.run_of(factories.sweep("other"))
    work(other, fail=frozenset({0}))
    as_operator.post(f"/admin/dashboard/sweeprun/{other.pk}/retry/")
    other.refresh_from_db()
    assert (other.state, other.attempt) == (State.QUEUED, 2)


def test_actions_on_runs_tell_how_each_went(as_operator: Client) -> None:
    ended = factories.run_of(factories.sweep("b"))
    work(ended)
    active = factories.run_of(factories.sweep("a"))
    data = {"action": "cancel_runs", "_selected_action": [active.pk, ended.pk]}
    page = as_operator.post("/admin/dashboard/sweeprun/", data, follow=True).content.decode()
    assert f"Run {active.pk} (a) is cancelled." in page
    assert f"Run {ended.pk} has already ended" in page


def test_active_run_cannot_be_deleted(as_admin: Client) -> None:
    run = factories.run_of(factories.sweep())
    url = f"/admin/dashboard/sweeprun/{run.pk}/delete/"
    assert as_admin.post(url, {"post": "yes"}).status_code == 403
    services.cancel(run=run)
    as_admin.post(url, {"post": "yes"})
    assert not SweepRun.objects.exists()


def test_measurements_are_read_only_even_for_an_administrator(as_admin: Client) -> None:
    row = factories.stored()
    url = f"/admin/dashboard/measurement/{row.pk}/change/"
    assert as_admin.get(url).status_code == 200
    assert as_admin.post(url, {"tok_s": "1e9"}).status_code == 403
    assert as_admin.get("/admin/dashboard/measurement/add/").status_code == 403
    assert Measurement.objects.get().tok_s == row.tok_s


@pytest.mark.parametrize("model", ["sweep", "sweeprun", "measurement", "configuration"])
def test_lists_of_the_admin_can_be_opened(as_admin: Client, model: str) -> None:
    work(factories.run_of(factories.sweep()))
    assert as_admin.get(f"/admin/dashboard/{model}/").status_code == 200


def test_deleting_sweeps_takes_their_schedules_along(as_admin: Client) -> None:
    as_admin.post(ADD, FORM)
    sweep = Sweep.objects.get(name="nightly")
    data = {"action": "delete_selected", "_selected_action": [sweep.pk], "post": "yes"}
    as_admin.post("/admin/dashboard/sweep/", data)
    assert not PeriodicTask.objects.filter(task=definitions.SCHEDULED_TASK).exists()
