"""Races and lives of sweep runs. Two processes are two owner tokens; a race is played by hand, in order."""

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
from dashboard.sweeps import definitions, ownership, services
from tests.dashboard import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> SweepRun:
    return factories.run_of(factories.sweep())


def work(run: SweepRun, owner: str = "me", fail: frozenset[int] = frozenset()) -> None:
    """Takes a queued run through to its end; the points in `fail` fail."""
    assert ownership.claim_run(run_id=run.pk, owner=owner)
    while point := ownership.claim_point(run_id=run.pk, owner=owner):
        if point.index in fail:
            ownership.fail_point(
                point=point, owner=owner, code="backend_failed", message="it burst", worker="w"
            )
        else:
            ownership.finish_point(
                point=point,
                owner=owner,
                document=factories.document(day=point.pk, context=point.context),
                worker="w",
            )
    assert ownership.finish_run(run_id=run.pk, owner=owner)
    run.refresh_from_db()


def states(run: SweepRun) -> list[str]:
    return list(Point.objects.filter(run=run, current=True).order_by("index").values_list("state", flat=True))


# Starting --------------------------------------------------------------------------------------------
def test_started_sweep_has_a_queued_point_for_each_place_of_its_matrix(
    told: list[int], django_capture_on_commit_callbacks: object
) -> None:
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        run = services.start_sweep(sweep=factories.sweep(), trigger=Trigger.ADMIN)
    assert (run.total, run.done, run.state) == (2, 0, State.QUEUED)
    assert list(run.points.values_list("context", "state")) == [(8, "queued"), (16, "queued")]
    assert told == [run.pk]


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
    run = services.start_sweep(sweep=factories.sweep(), trigger=Trigger.ADMIN, who=who, enqueue=False)
    entry = AuditEntry.objects.get(who=who)
    assert (entry.by, entry.act, entry.url) == ("ada", "sweep started", run.get_absolute_url())


def test_start_by_nobody_names_what_started_it() -> None:
    services.start_sweep(sweep=factories.sweep(), trigger=Trigger.SCHEDULE, enqueue=False)
    assert AuditEntry.objects.get().by == "its schedule"


# Working ---------------------------------------------------------------------------------------------
def test_of_two_processes_only_one_gets_the_run(run: SweepRun) -> None:
    assert ownership.claim_run(run_id=run.pk, owner="first") is not None
    assert ownership.claim_run(run_id=run.pk, owner="second") is None


def test_run_ends_finished_when_every_point_was_measured(run: SweepRun) -> None:
    work(run)
    assert (run.state, run.done, states(run)) == (State.FINISHED, 2, ["finished", "finished"])
    assert Measurement.objects.filter(point__run=run).count() == 2


def test_run_with_a_failed_point_ends_failed_and_keeps_the_error(run: SweepRun) -> None:
    work(run, fail=frozenset({0}))
    assert (run.state, states(run)) == (State.FAILED, ["failed", "finished"])
    assert run.points.get(index=0).error == "it burst"


def test_process_that_takes_over_asks_with_the_same_request_id(run: SweepRun) -> None:
    ownership.claim_run(run_id=run.pk, owner="dead")
    begun = ownership.claim_point(run_id=run.pk, owner="dead")
    ownership.reap(now=timezone.now() + 2 * ownership.STALE_AFTER)
    ownership.claim_run(run_id=run.pk, owner="heir")
    again = ownership.claim_point(run_id=run.pk, owner="heir")
    assert begun is not None and again is not None
    assert (again.pk, again.request_id) == (begun.pk, begun.request_id)


def test_process_that_was_taken_over_writes_nothing_more(run: SweepRun) -> None:
    ownership.claim_run(run_id=run.pk, owner="slow")
    point = ownership.claim_point(run_id=run.pk, owner="slow")
    assert point is not None
    ownership.reap(now=timezone.now() + 2 * ownership.STALE_AFTER)
    ownership.claim_run(run_id=run.pk, owner="heir")
    late = factories.document()
    assert ownership.finish_point(point=point, owner="slow", document=late, worker="w") is None
    assert not ownership.heartbeat(run_id=run.pk, owner="slow", label="still here")
    assert ownership.claim_point(run_id=run.pk, owner="slow") is None
    assert not ownership.finish_run(run_id=run.pk, owner="slow")
    assert not Measurement.objects.exists()


@pytest.mark.parametrize("ahead", [timedelta(minutes=20), timedelta(minutes=-20)])
def test_a_run_is_not_lost_by_a_reaper_whose_clock_differs(
    run: SweepRun, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    true = timezone.now
    ownership.claim_run(run_id=run.pk, owner="me")
    with monkeypatch.context() as skewed:
        skewed.setattr(timezone, "now", lambda: true() + ahead)
        assert ownership.reap().resumed == []
        assert SweepRun.objects.get(pk=run.pk).silent_since is None
        assert ownership.heartbeat(run_id=run.pk, owner="me", label="on")
    assert ownership.reap().resumed == []


def test_answer_that_arrives_twice_is_stored_once(run: SweepRun) -> None:
    ownership.claim_run(run_id=run.pk, owner="me")
    point = ownership.claim_point(run_id=run.pk, owner="me")
    assert point is not None
    answer = factories.document()
    assert ownership.finish_point(point=point, owner="me", document=answer, worker="w")
    assert ownership.finish_point(point=point, owner="me", document=answer, worker="w") is None
    run.refresh_from_db()
    assert (run.done, Measurement.objects.count()) == (1, 1)


def test_released_run_waits_in_the_queue_and_keeps_what_was_measured(run: SweepRun, told: list[int]) -> None:
    ownership.claim_run(run_id=run.pk, owner="me")
    point = ownership.claim_point(run_id=run.pk, owner="me")
    assert point is not None
    ownership.finish_point(point=point, owner="me", document=factories.document(), worker="w")
    assert ownership.release_run(run_id=run.pk, owner="me")
    assert ownership.reap().reminded == [run.pk]
    assert told == [run.pk]
    work(run, owner="next")
    assert (run.state, Measurement.objects.count()) == (State.FINISHED, 2)


def test_hint_is_sent_only_for_news(
    run: SweepRun, hinted: list[dict[str, object]], django_capture_on_commit_callbacks: object
) -> None:
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        ownership.claim_run(run_id=run.pk, owner="me")
        for label in ("measuring", "measuring", "2 of 5 repeats"):
            ownership.heartbeat(run_id=run.pk, owner="me", label=label)
    assert [h["type"] for h in hinted] == ["sweep"] * 3
    assert hinted[-1] == {
        "group": f"dashboard.sweep.{run.pk}",
        "type": "sweep",
        "run": run.pk,
        "version": 3,
    }


# Cancelling ------------------------------------------------------------------------------------------
def test_cancel_while_running_stops_the_process_and_withdraws_its_request(
    run: SweepRun, withdrawn: list[str | None], django_capture_on_commit_callbacks: object
) -> None:
    ownership.claim_run(run_id=run.pk, owner="me")
    point = ownership.claim_point(run_id=run.pk, owner="me")
    assert point is not None
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        services.cancel(run=run)
    assert withdrawn == [point.request_id]
    assert not ownership.heartbeat(run_id=run.pk, owner="me", label="")
    assert ownership.finish_point(point=point, owner="me", document=factories.document(), worker="w") is None
    run.refresh_from_db()
    assert (run.state, states(run)) == (State.CANCELLED, ["cancelled", "cancelled"])


def test_cancel_keeps_the_points_that_were_measured(run: SweepRun) -> None:
    ownership.claim_run(run_id=run.pk, owner="me")
    point = ownership.claim_point(run_id=run.pk, owner="me")
    assert point is not None
    ownership.finish_point(point=point, owner="me", document=factories.document(), worker="w")
    services.cancel(run=run)
    run.refresh_from_db()
    assert (states(run), run.done) == (["finished", "cancelled"], 1)


def test_cancelled_run_is_not_claimed_by_a_late_task(run: SweepRun) -> None:
    services.cancel(run=run)
    assert ownership.claim_run(run_id=run.pk, owner="late") is None


def test_second_cancel_is_refused(run: SweepRun) -> None:
    services.cancel(run=run)
    with pytest.raises(NothingToDo, match="already ended"):
        services.cancel(run=run)


# Retrying --------------------------------------------------------------------------------------------
def test_retry_measures_only_the_failed_points_and_keeps_the_failure(run: SweepRun) -> None:
    work(run, fail=frozenset({1}))
    assert services.retry_failed(run=run) == 1
    assert states(run) == ["finished", "queued"]
    work(run, owner="again")
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


# The reaper ------------------------------------------------------------------------------------------
def test_reaper_leaves_a_run_with_a_fresh_heartbeat_alone(run: SweepRun) -> None:
    ownership.claim_run(run_id=run.pk, owner="me")
    assert ownership.reap() == ownership.Reaped([], [], [])


def test_reaper_queues_a_run_without_heartbeat_and_tells_celery(run: SweepRun, told: list[int]) -> None:
    ownership.claim_run(run_id=run.pk, owner="dead")
    found = ownership.reap(now=timezone.now() + 2 * ownership.STALE_AFTER)
    assert (found.resumed, told) == ([run.pk], [run.pk])
    run.refresh_from_db()
    assert (run.state, run.resumed, run.owner) == (State.QUEUED, 1, "")


def test_reaper_gives_up_a_run_that_keeps_losing_its_process(run: SweepRun) -> None:
    for _ in range(ownership.MAX_RESUMES + 1):
        ownership.claim_run(run_id=run.pk, owner="dead")
        ownership.reap(now=timezone.now() + 2 * ownership.STALE_AFTER)
    run.refresh_from_db()
    assert run.state == State.FAILED
    assert "lost 6 times" in run.error
    assert states(run) == ["failed", "failed"]


def test_run_that_celery_forgot_is_told_again_but_not_every_minute(run: SweepRun, told: list[int]) -> None:
    later = timezone.now() + ownership.REMIND_AFTER + timedelta(seconds=1)
    ownership.reap(now=later)
    ownership.reap(now=later + timedelta(minutes=1))
    assert told == [run.pk]


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
    definitions.ensure_reaper()
    definitions.ensure_reaper()
    assert PeriodicTask.objects.filter(task=definitions.REAP_TASK).count() == 1
