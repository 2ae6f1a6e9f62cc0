"""Races and lives of sweep runs. A race between two collectors is played by hand, in order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from dashboard.errors import NothingToDo, SweepBusy, UnknownSweep
from dashboard.models import AuditEntry, Measurement, Point, State, Sweep, SweepRun, Trigger
from dashboard.sweeps import definitions, lifecycle, services
from tests.dashboard import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> SweepRun:
    return factories.run_of(factories.sweep())


def work(run: SweepRun, fail: frozenset[int] = frozenset()) -> None:
    """Takes a queued run through to its end; the points in `fail` fail."""
    assert lifecycle.begin_run(run_id=run.pk)
    while point := lifecycle.next_point(run_id=run.pk):
        if point.index in fail:
            lifecycle.fail_point(point=point, code="backend_failed", message="it burst", worker="w")
        else:
            lifecycle.finish_point(
                point=point,
                document=factories.document(day=point.pk, context=point.context),
                worker="w",
            )
    assert lifecycle.finish_run(run_id=run.pk)
    run.refresh_from_db()


def states(run: SweepRun) -> list[str]:
    return list(Point.objects.filter(run=run, current=True).order_by("index").values_list("state", flat=True))


# Starting --------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_started_sweep_has_a_queued_point_for_each_place_of_its_matrix() -> None:
    run = services.start_sweep(sweep=factories.sweep(), trigger=Trigger.ADMIN)
    assert (run.total, run.done, run.state) == (2, 0, State.QUEUED)
    assert list(run.points.values_list("context", "state")) == [(8, "queued"), (16, "queued")]


def test_second_start_of_an_active_sweep_is_refused_and_leaves_nothing(run: SweepRun) -> None:
    with pytest.raises(SweepBusy, match=f"already queued .run {run.pk}."):
        services.start_sweep(sweep=run.sweep, trigger=Trigger.PAGE)  # type: ignore[arg-type]
    assert SweepRun.objects.count() == 1
    assert Point.objects.count() == 2


def test_database_itself_refuses_two_active_runs_of_a_sweep(run: SweepRun) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        SweepRun.objects.create(sweep=run.sweep, name="x", repeats=5, trigger="shell", total=1)


def test_sweep_can_be_started_again_when_its_run_has_ended(run: SweepRun) -> None:
    work(run)
    assert factories.run_of(run.sweep).pk != run.pk  # type: ignore[arg-type]


def test_sweep_whose_matrix_became_invalid_is_not_started() -> None:
    sweep = factories.sweep()
    Sweep.objects.filter(pk=sweep.pk).update(matrix={"model": []})
    sweep.refresh_from_db()
    with pytest.raises(ValidationError):
        services.start_sweep(sweep=sweep, trigger=Trigger.PAGE)
    assert not SweepRun.objects.exists()


def test_start_by_a_person_is_in_the_log() -> None:
    who = User.objects.create_user("ada")
    run = services.start_sweep(sweep=factories.sweep(), trigger=Trigger.ADMIN, who=who)
    entry = AuditEntry.objects.get(who=who)
    assert (entry.by, entry.act, entry.url) == ("ada", "sweep started", run.get_absolute_url())


def test_start_by_nobody_names_what_started_it() -> None:
    services.start_sweep(sweep=factories.sweep(), trigger=Trigger.SCHEDULE)
    assert AuditEntry.objects.get().by == "its schedule"


# Working ---------------------------------------------------------------------------------------------
def test_of_two_collectors_one_begins_the_run(run: SweepRun) -> None:
    assert lifecycle.begin_run(run_id=run.pk)
    assert not lifecycle.begin_run(run_id=run.pk)


def test_run_ends_finished_when_every_point_was_measured(run: SweepRun) -> None:
    work(run)
    assert (run.state, run.done, states(run)) == (State.FINISHED, 2, ["finished", "finished"])
    assert Measurement.objects.filter(point__run=run).count() == 2


def test_run_with_a_failed_point_ends_failed_and_keeps_the_error(run: SweepRun) -> None:
    work(run, fail=frozenset({0}))
    assert (run.state, states(run)) == (State.FAILED, ["failed", "finished"])
    assert run.points.get(index=0).error == "it burst"


def test_two_collectors_ask_for_the_same_point_with_the_same_request_id(run: SweepRun) -> None:
    lifecycle.begin_run(run_id=run.pk)
    first, second = (lifecycle.next_point(run_id=run.pk) for _ in range(2))
    assert first is not None and second is not None
    assert (second.pk, second.request_id) == (first.pk, first.request_id)


def test_collector_that_comes_late_changes_nothing(run: SweepRun) -> None:
    lifecycle.begin_run(run_id=run.pk)
    late = lifecycle.next_point(run_id=run.pk)
    assert late is not None
    assert lifecycle.fail_point(point=late, code="internal", message="it burst", worker="w")
    assert lifecycle.finish_point(point=late, document=factories.document(), worker="w") is None
    assert not lifecycle.fail_point(point=late, code="internal", message="again", worker="w")
    assert not Measurement.objects.exists()
    assert run.points.get(index=0).error == "it burst"


@pytest.mark.parametrize("ahead", [timedelta(minutes=20), timedelta(minutes=-20)])
def test_a_run_is_not_silent_to_a_page_whose_clock_differs(
    run: SweepRun, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    true = timezone.now
    lifecycle.begin_run(run_id=run.pk)
    monkeypatch.setattr(timezone, "now", lambda: true() + ahead)
    assert SweepRun.objects.get(pk=run.pk).silent_since is None


def test_answer_that_arrives_twice_is_stored_once(run: SweepRun) -> None:
    lifecycle.begin_run(run_id=run.pk)
    point = lifecycle.next_point(run_id=run.pk)
    assert point is not None
    answer = factories.document()
    assert lifecycle.finish_point(point=point, document=answer, worker="w")
    assert lifecycle.finish_point(point=point, document=answer, worker="w") is None
    run.refresh_from_db()
    assert (run.done, Measurement.objects.count()) == (1, 1)


def test_hint_is_sent_only_for_news(
    run: SweepRun, hinted: list[dict[str, object]], django_capture_on_commit_callbacks: object
) -> None:
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        lifecycle.begin_run(run_id=run.pk)
        for label in ("measuring", "measuring", "2 of 5 repeats"):
            lifecycle.note(run_id=run.pk, label=label)
    assert [h["type"] for h in hinted] == ["sweep"] * 3
    assert hinted[-1] == {
        "group": f"dashboard.sweep.{run.pk}",
        "type": "sweep",
        "run": run.pk,
        "version": 3,
    }


# Cancelling ------------------------------------------------------------------------------------------
def test_cancel_while_running_withdraws_the_request_and_takes_no_answer(
    run: SweepRun, withdrawn: list[str | None], django_capture_on_commit_callbacks: object
) -> None:
    lifecycle.begin_run(run_id=run.pk)
    point = lifecycle.next_point(run_id=run.pk)
    assert point is not None
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        services.cancel(run=run)
    assert withdrawn == [point.request_id]
    assert lifecycle.finish_point(point=point, document=factories.document(), worker="w") is None
    run.refresh_from_db()
    assert (run.state, states(run)) == (State.CANCELLED, ["cancelled", "cancelled"])


def test_cancel_keeps_the_points_that_were_measured(run: SweepRun) -> None:
    lifecycle.begin_run(run_id=run.pk)
    point = lifecycle.next_point(run_id=run.pk)
    assert point is not None
    lifecycle.finish_point(point=point, document=factories.document(), worker="w")
    services.cancel(run=run)
    run.refresh_from_db()
    assert (states(run), run.done) == (["finished", "cancelled"], 1)


def test_cancelled_run_is_not_begun(run: SweepRun) -> None:
    services.cancel(run=run)
    assert not lifecycle.begin_run(run_id=run.pk)


def test_second_cancel_is_refused(run: SweepRun) -> None:
    services.cancel(run=run)
    with pytest.raises(NothingToDo, match="already ended"):
        services.cancel(run=run)


# Retrying --------------------------------------------------------------------------------------------
def test_retry_measures_only_the_failed_points_and_keeps_the_failure(run: SweepRun) -> None:
    work(run, fail=frozenset({1}))
    assert services.retry_failed(run=run) == 1
    assert states(run) == ["finished", "queued"]
    work(run)
    assert (run.state, run.attempt, run.done) == (State.FINISHED, 2, 2)
    assert list(run.points.filter(index=1).values_list("attempt", "state", "current")) == [
        (1, "failed", False),
        (2, "finished", True),
    ]
    assert Measurement.objects.count() == 2


def test_second_retry_click_does_nothing(run: SweepRun) -> None:
    work(run, fail=frozenset({1}))
    services.retry_failed(run=run)
    with pytest.raises(NothingToDo, match="has not ended"):
        services.retry_failed(run=run)
    assert run.points.count() == 3


def test_run_without_failures_has_nothing_to_retry(run: SweepRun) -> None:
    work(run)
    with pytest.raises(NothingToDo, match="No point"):
        services.retry_failed(run=run)
    run.refresh_from_db()
    assert (run.state, run.attempt) == (State.FINISHED, 1)


def test_retry_is_refused_while_the_sweep_runs_again(run: SweepRun) -> None:
    work(run, fail=frozenset({0}))
    factories.run_of(run.sweep)  # type: ignore[arg-type]
    with pytest.raises(SweepBusy):
        services.retry_failed(run=run)
    run.refresh_from_db()
    assert run.state == State.FAILED


# Constraints -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        {"state": "resting"},
        {"done": 3},
        {"state": "finished"},
        {"state": "running"},
        {"trigger": "moon"},
    ],
)
def test_database_refuses_an_impossible_run(run: SweepRun, change: dict[str, object]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        SweepRun.objects.filter(pk=run.pk).update(**change)


@pytest.mark.parametrize("change", [{"state": "failed"}, {"state": "running"}, {"state": "new"}])
def test_database_refuses_an_impossible_point(run: SweepRun, change: dict[str, object]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Point.objects.filter(run=run, index=0).update(**change)


@pytest.mark.parametrize(
    "change", [{"tok_s": 0.0}, {"mbu_measured": 1.5}, {"ci_low": 1e9}, {"samples": 0}, {"mbu_datasheet": 0.0}]
)
def test_database_refuses_an_impossible_measurement(change: dict[str, float]) -> None:
    row = factories.stored()
    with pytest.raises(IntegrityError), transaction.atomic():
        Measurement.objects.filter(pk=row.pk).update(**change)


# Sweeps and schedules --------------------------------------------------------------------------------
def test_presets_are_there_after_migration_and_a_changed_one_stays_changed() -> None:
    Sweep.objects.filter(name="cpu-quick").update(repeats=9)
    assert definitions.load_presets() == 0
    assert Sweep.objects.get(name="cpu-quick").repeats == 9


def test_preset_that_was_deleted_can_still_be_run_by_name() -> None:
    Sweep.objects.filter(name="cpu-quick").delete()
    sweep = definitions.find_sweep(name="cpu-quick")
    assert (sweep.matrix["backend"], sweep.trace) == (["numpy"], True)


def test_unknown_sweep_is_answered_with_the_known_names() -> None:
    with pytest.raises(UnknownSweep, match="cpu-quick"):
        definitions.find_sweep(name="nothing")


def test_schedule_is_set_changed_and_taken_away() -> None:
    sweep = factories.sweep()
    definitions.set_schedule(sweep=sweep, crontab="30 2 * * 1-5")
    definitions.set_schedule(sweep=sweep, crontab="15 3 * * *", enabled=False)
    task = PeriodicTask.objects.get(task=definitions.SCHEDULED_TASK)
    assert (sweep.crontab, task.enabled, task.args) == ("15 3 * * *", False, f"[{sweep.pk}]")
    definitions.set_schedule(sweep=sweep, crontab="")
    assert not PeriodicTask.objects.filter(task=definitions.SCHEDULED_TASK).exists()
    assert sweep.crontab == ""


@pytest.mark.parametrize("crontab", ["nightly", "61 * * * *", "* * * *", "* * * * mun", "a b c d e"])
def test_schedule_that_is_no_crontab_is_refused(crontab: str) -> None:
    with pytest.raises(ValidationError, match="schedule"):
        definitions.set_schedule(sweep=factories.sweep(), crontab=crontab)


def test_deleted_sweep_takes_its_schedule_along_and_leaves_its_runs(run: SweepRun) -> None:
    work(run)
    sweep = run.sweep
    assert sweep is not None
    definitions.set_schedule(sweep=sweep, crontab="30 2 * * *")
    definitions.delete_sweep(sweep=sweep)
    run.refresh_from_db()
    assert (run.sweep, run.name) == (None, "test-sweep")
    assert not PeriodicTask.objects.filter(task=definitions.SCHEDULED_TASK).exists()


def test_reaper_is_scheduled_once() -> None:
    definitions.ensure_notices()
    definitions.ensure_notices()
    assert PeriodicTask.objects.filter(task=definitions.NOTICES_TASK).count() == 1
