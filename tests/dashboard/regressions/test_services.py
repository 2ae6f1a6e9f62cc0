"""The life of a regression: opened by the rule, handled by people, closed by one or the other."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from dashboard.errors import NothingToDo
from dashboard.models import (
    AuditEntry,
    Configuration,
    Label,
    Measurement,
    MetricStatus,
    Regression,
    RegressionStatus,
)
from dashboard.regressions import services
from engine.measuring.measurement import Verified
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
GOOD = [100.0, 101, 99, 100, 100]


@pytest.fixture
def who() -> User:
    return User.objects.create_user("ada")


def history(*speeds: float, start: int = 0, **kwargs: Any) -> Configuration:
    """Stores one measurement a day and judges after each, as they would have come in."""
    for day, tok_s in enumerate(speeds, start=start):
        row = factories.stored(tok_s=tok_s, day=day, git_sha=f"{day:040x}", **kwargs)
        services.judge_configurations([row.configuration_id])
    return row.configuration


def standing(configuration: Configuration, metric: str = "tok_s") -> MetricStatus:
    return MetricStatus.objects.get(configuration=configuration, metric=metric)


def test_two_slow_points_open_one_regression_with_its_range_of_commits() -> None:
    configuration = history(*GOOD, 80, 81)
    regression = Regression.objects.get()
    assert (regression.configuration, regression.metric, regression.fate) == (configuration, "tok_s", "open")
    assert (regression.baseline, regression.value) == (100, 81)
    assert int(regression.good_sha, 16) == 4
    assert int(regression.bad_sha, 16) == 5
    assert regression.first_bad is not None and regression.first_bad.tok_s == 80
    assert AuditEntry.objects.get().act == "regression opened"


def test_more_slow_points_do_not_open_another() -> None:
    history(*GOOD, *[80] * 12)
    regression = Regression.objects.get()
    assert (regression.stands, regression.baseline) == (True, 100)


def test_one_slow_point_opens_nothing_and_is_shown() -> None:
    assert standing(history(*GOOD, 100, 80)).label == Label.SUSPICIOUS
    assert not Regression.objects.exists()


def test_creep_of_one_percent_a_run_opens_one_regression() -> None:
    configuration = history(*[100 + (i % 3) * 0.2 for i in range(8)], *[100 * 0.99**i for i in range(1, 25)])
    regression = Regression.objects.get()
    assert regression.stands and regression.change < -0.2
    assert standing(configuration).label == Label.REGRESSION


def test_young_configuration_says_insufficient_data() -> None:
    found = standing(history(100, 50))
    assert (found.label, found.n, found.baseline) == (Label.INSUFFICIENT, 2, None)


def test_threshold_of_the_configuration_decides() -> None:
    configuration = history(*GOOD)
    Configuration.objects.update(threshold=0.3)
    history(80, 80, start=5)
    assert standing(configuration).label == Label.STEADY
    assert not Regression.objects.exists()


def test_speed_of_wrong_tokens_does_not_count() -> None:
    history(*GOOD)
    history(10, 10, start=5, verified=Verified("x", False, 1.0))
    assert not Regression.objects.exists()


def test_slower_first_token_opens_its_own_regression() -> None:
    from engine.measuring.measurement import FirstToken

    history(*GOOD)
    history(100, 100, start=5, ttft_ms=FirstToken(50.0, 5))
    assert [r.metric for r in Regression.objects.all()] == ["ttft_ms"]


def test_configurations_do_not_disturb_each_other() -> None:
    history(*GOOD, context=16)
    history(50, 50, start=5, context=32)
    assert not Regression.objects.exists()


def test_two_points_back_at_the_baseline_close_it() -> None:
    configuration = history(*GOOD, 80, 80, 99, 100)
    regression = Regression.objects.get()
    assert (regression.fate, regression.closed is not None) == (RegressionStatus.RECOVERED, True)
    assert standing(configuration).label == Label.IMPROVEMENT
    history(*[100.0] * 12, start=9)
    assert standing(configuration).label == Label.STEADY


def test_one_good_point_does_not_close_it() -> None:
    configuration = history(*GOOD, 80, 80, 100)
    assert Regression.objects.get().stands
    assert standing(configuration).label == Label.REGRESSION


def test_slowly_sinking_baseline_does_not_hide_it() -> None:
    """Its own baseline holds: twelve slow points do not make slow normal."""
    configuration = history(*GOOD, *[80] * 14)
    assert standing(configuration).label == Label.REGRESSION
    assert standing(configuration).baseline == 100


def test_accepted_speed_is_the_new_baseline(who: User) -> None:
    configuration = history(*GOOD, 80, 80)
    regression = Regression.objects.get()
    services.accept(regression=regression, who=who)
    assert (regression.fate, regression.handler) == (RegressionStatus.ACCEPTED, who)
    assert standing(configuration).label == Label.INSUFFICIENT
    history(80, 80, 80, 80, 80, start=7)
    assert standing(configuration).label == Label.STEADY
    history(60, 60, start=12)
    assert Regression.objects.get(fate=RegressionStatus.OPEN).baseline == 80


def test_acknowledged_regression_stands_and_recovers_like_an_open_one(who: User) -> None:
    history(*GOOD, 80, 80)
    services.acknowledge(regression=Regression.objects.get(), who=who)
    assert Regression.objects.get().stands
    history(100, 100, start=7)
    assert Regression.objects.get().fate == RegressionStatus.RECOVERED
    assert set(AuditEntry.objects.values_list("by", "act")) == {
        ("the rule", "regression opened"),
        ("ada", "regression acknowledged"),
        ("the rule", "regression recovered"),
    }


def test_regression_can_be_acknowledged_once(who: User) -> None:
    history(*GOOD, 80, 80)
    regression = Regression.objects.get()
    services.acknowledge(regression=regression, who=who)
    with pytest.raises(NothingToDo, match="already acknowledged"):
        services.acknowledge(regression=regression, who=who)


def test_closed_regression_cannot_be_accepted(who: User) -> None:
    history(*GOOD, 80, 80, 100, 100)
    with pytest.raises(NothingToDo, match="already recovered"):
        services.accept(regression=Regression.objects.get(), who=who)


@pytest.mark.parametrize(
    ("text", "message"), [("  \n", "is empty"), ("x" * 2001, "2001 characters"), ("a\0b", "null")]
)
def test_comment_must_say_something_and_not_too_much(who: User, text: str, message: str) -> None:
    history(*GOOD, 80, 80)
    with pytest.raises(ValidationError, match=message):
        services.comment(regression=Regression.objects.get(), who=who, text=text)


def test_comment_outlives_its_account(who: User) -> None:
    history(*GOOD, 80, 80)
    services.comment(regression=Regression.objects.get(), who=who, text="the new driver")
    who.delete()
    made = Regression.objects.get().comments.get()
    assert (made.by, made.who, made.text) == ("ada", None, "the new driver")


def test_database_itself_refuses_two_that_stand() -> None:
    history(*GOOD, 80, 80)
    twin = Regression.objects.get()
    twin.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        twin.save(force_insert=True)


def test_judging_again_changes_nothing() -> None:
    configuration = history(*GOOD, 80, 80)
    before = (
        list(Regression.objects.values()),
        list(MetricStatus.objects.values_list("label", "n", "baseline")),
    )
    assert services.judge_configurations([configuration.pk]) == []
    after = (
        list(Regression.objects.values()),
        list(MetricStatus.objects.values_list("label", "n", "baseline")),
    )
    assert before == after


def test_measurements_stored_before_the_rule_are_judged_once() -> None:
    for day, tok_s in enumerate([*GOOD, 80, 80]):
        factories.stored(tok_s=tok_s, day=day)
    services.judge_missing()
    assert Regression.objects.count() == 1
    assert Measurement.objects.count() == 7


def test_points_that_came_while_it_waited_for_another_process_are_judged_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configuration = history(*GOOD)
    lock = QuerySet.select_for_update

    def lock_after_the_other(rows: QuerySet[Any], *args: Any, **kwargs: Any) -> QuerySet[Any]:
        if rows.model is Configuration:
            for day in (5, 6):
                factories.stored(tok_s=80.0, day=day)
        return lock(rows, *args, **kwargs)

    monkeypatch.setattr(QuerySet, "select_for_update", lock_after_the_other)
    assert len(services.judge_configurations([configuration.pk])) == 1


def test_judging_takes_the_same_number_of_queries_however_long_the_history(
    django_assert_max_num_queries: Any,
) -> None:
    configuration = history(*[100.0] * 40)
    with django_assert_max_num_queries(8):
        services.judge_configurations([configuration.pk])


def test_a_pinned_run_stays_the_reference_however_slowly_the_speed_sinks(who: User) -> None:
    configuration = history(*[100.0] * 8, *[98.8] * 8)
    Regression.objects.all().delete()
    Configuration.objects.update(threshold=0.015)
    fast = Measurement.objects.filter(configuration=configuration).earliest("created")
    services.pin(measurement=fast, who=who)
    history(*[97.6] * 3, start=16)
    regression = Regression.objects.get(metric="tok_s")
    assert (regression.baseline, regression.is_against_reference) == (100.0, True)
    assert AuditEntry.objects.filter(act="reference pinned").exists()


def test_a_run_that_is_worse_than_the_reference_opens_at_the_pinning(who: User) -> None:
    configuration = history(*[90.0] * 8)
    better = factories.stored(tok_s=100.0, day=20, git_sha="f" * 40)
    history(*[90.0] * 3, start=21)
    services.judge_configurations([configuration.pk])
    assert not Regression.objects.exists()
    services.pin(measurement=better, who=who)
    assert Regression.objects.get(metric="tok_s").baseline == 100.0


def test_only_a_verified_run_can_be_pinned(who: User) -> None:
    row = factories.stored(verified=Verified("a reference", False, None))
    with pytest.raises(NothingToDo, match="not verified"):
        services.pin(measurement=row, who=who)


def test_a_speed_that_was_accepted_later_outlives_the_reference(who: User) -> None:
    configuration = history(*GOOD, 80, 81)
    fast = Measurement.objects.filter(configuration=configuration).earliest("created")
    services.pin(measurement=fast, who=who)
    for regression in Regression.objects.filter(fate=RegressionStatus.OPEN):
        services.accept(regression=regression, who=who)
    history(*[80.0] * 8, start=8)
    assert not Regression.objects.filter(fate=RegressionStatus.OPEN).exists()
