"""The verbs: judge configurations, open and close regressions, acknowledge, accept, comment.

Judging reads the newest points and nothing else, so it may be done at any time and as often as one likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from dashboard import celery_bridge
from dashboard.audit import log as audit
from dashboard.errors import NothingToDo
from dashboard.models import (
    CLOSED_FATES,
    STANDING_FATES,
    Configuration,
    Label,
    Measurement,
    MetricStatus,
    Regression,
    RegressionComment,
    RegressionStatus,
)
from dashboard.regressions.rule import HISTORY, WATCHED, Verdict, has_recovered, judge

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = structlog.get_logger(__name__)

EMAIL_TASK = "dashboard.email_regression"
WEBHOOK_TASK = "dashboard.call_webhook"
COMMENT_LENGTH = 2000
ASK_AGAIN = timedelta(hours=1)
GIVE_UP = timedelta(days=2)
"""A notice that could not be delivered is asked for every hour; after two days it is no news."""
TOGETHER = timedelta(days=1)
"""Regressions between the same two commits on the same hardware that open within so long have one cause."""


# Judging ---------------------------------------------------------------------------------------------
def judge_configurations(keys: Iterable[int], *, using: str = DEFAULT_DB_ALIAS) -> list[Regression]:
    """Brings the standings of these configurations up to date; returns the regressions that it opened."""
    opened = []
    for configuration in Configuration.objects.using(using).filter(pk__in=set(keys)):
        try:
            opened += _judge(configuration, using)
        except IntegrityError:  # another process judged it in this moment, by the same points
            log.info("judged_elsewhere", configuration=configuration.pk)
    return opened


def judge_later(keys: Iterable[int]) -> None:
    """Judges once the transaction is through; a rule that fails costs no measurement."""
    wanted = set(keys)

    def judge_now() -> None:
        judge_configurations(wanted)

    transaction.on_commit(judge_now, robust=True)


def judge_missing(*, using: str = DEFAULT_DB_ALIAS) -> None:
    """Judges the configurations that never were: those that were stored before there was a rule."""
    never = Configuration.objects.using(using).filter(standings__isnull=True, measurements__isnull=False)
    judge_configurations(never.values_list("pk", flat=True).distinct(), using=using)


def _judge(configuration: Configuration, using: str) -> list[Regression]:
    opened: list[Regression] = []
    verdicts: dict[str, Verdict] = {}
    with transaction.atomic(using=using):
        # Who comes second waits here, and then reads what the first one did not know yet.
        locked = Configuration.objects.using(using).select_for_update(of=("self",))
        configuration = (
            locked.select_related("reference").defer("reference__document").get(pk=configuration.pk)
        )
        rows = _newest(configuration, using)
        standing = {
            row.metric: row
            for row in Regression.objects.using(using)
            .select_for_update()
            .filter(configuration=configuration, fate__in=STANDING_FATES)
        }
        normal_since = _accepted_since(configuration, using)
        for metric, better in WATCHED.items():
            points = [
                row
                for row in rows
                if getattr(row, metric) is not None
                and (metric not in normal_since or row.created >= normal_since[metric])
            ]
            values = [getattr(row, metric) for row in points]
            pinned = _reference_value(configuration, metric, normal_since)
            verdict = judge(values, better, configuration.threshold, pinned)
            if metric in standing:
                verdict = _follow(standing[metric], points, better, verdict)
            elif verdict.label is Label.REGRESSION:
                cause = opened[0].cause or opened[0] if opened else None
                opened.append(_open(configuration, metric, points, verdict, cause, using))
            verdicts[metric] = verdict
        _note(configuration, verdicts, using)
    return opened


def _newest(configuration: Configuration, using: str) -> list[Measurement]:
    """The points that the rule looks at, oldest first."""
    rows = Measurement.objects.using(using).filter(configuration=configuration, verified=True)
    columns = ("pk", "created", "git_sha", "configuration_id", *WATCHED)
    return list(rows.order_by("-created", "-pk").only(*columns)[:HISTORY])[::-1]


def _accepted_since(configuration: Configuration, using: str) -> dict[str, datetime]:
    """Since when the present speed counts as normal, by metric, where somebody has said so."""
    rows = Regression.objects.using(using).filter(configuration=configuration, fate=RegressionStatus.ACCEPTED)
    return dict(rows.order_by("since").values_list("metric", "since"))


def _reference_value(
    configuration: Configuration, metric: str, normal_since: Mapping[str, datetime]
) -> float | None:
    """The pinned run's value, unless a newer speed was accepted as normal or the run has none."""
    pinned = configuration.reference
    if pinned is None or (metric in normal_since and pinned.created < normal_since[metric]):
        return None
    value: float | None = getattr(pinned, metric)
    return value


def _follow(regression: Regression, points: Sequence[Measurement], better: int, verdict: Verdict) -> Verdict:
    """A regression that stands keeps its own baseline until the newest points are back at it."""
    values = [getattr(row, regression.metric) for row in points]
    if not values:
        return verdict
    regression.value = values[-1]
    if has_recovered(values, regression.baseline, regression.threshold, better):
        regression.fate, regression.closed = RegressionStatus.RECOVERED, timezone.now()
        audit.record("regression recovered", regression, by="the rule", url=regression.get_absolute_url())
        transaction.on_commit(lambda: ask_for_closing(regression))
    else:
        verdict = Verdict(
            Label.REGRESSION, verdict.n, regression.baseline, regression.threshold, regression.change
        )
    regression.save(update_fields=["value", "fate", "closed"])
    return verdict


def _open(
    configuration: Configuration,
    metric: str,
    points: Sequence[Measurement],
    verdict: Verdict,
    cause: Regression | None,
    using: str,
) -> Regression:
    baseline, threshold, index = verdict.baseline, verdict.threshold, verdict.first_bad
    assert baseline is not None and threshold is not None and index is not None  # noqa: S101 - a regression has all
    first_bad, last_good = points[index], points[index - 1]
    regression = Regression.objects.using(using).create(
        configuration=configuration,
        metric=metric,
        baseline=baseline,
        threshold=threshold,
        value=getattr(points[-1], metric),
        last_good=last_good,
        first_bad=first_bad,
        good_sha=last_good.git_sha,
        bad_sha=first_bad.git_sha,
        since=first_bad.created,
        cause=cause or _cause(configuration, last_good, first_bad, using),
    )
    audit.record("regression opened", regression, by="the rule", url=regression.get_absolute_url())
    transaction.on_commit(lambda: ask_for_notices(regression), using=using)
    return regression


def _cause(
    configuration: Configuration, last_good: Measurement, first_bad: Measurement, using: str
) -> Regression | None:
    """The regression that stands for the same change: since the same run, or between the same commits."""
    same = Q(configuration=configuration, first_bad=first_bad)
    if first_bad.git_sha and first_bad.git_sha != last_good.git_sha:
        same |= Q(
            configuration__hardware=configuration.hardware,
            good_sha=last_good.git_sha,
            bad_sha=first_bad.git_sha,
            opened__gte=timezone.now() - TOGETHER,
        )
    standing = Regression.objects.using(using).filter(same, fate__in=STANDING_FATES, cause=None)
    return standing.order_by("opened", "pk").first()


def _note(configuration: Configuration, verdicts: dict[str, Verdict], using: str) -> None:
    """Keeps the standings: one statement, whether they are new or not."""
    rows = [
        MetricStatus(
            configuration=configuration,
            metric=metric,
            label=verdict.label,
            n=verdict.n,
            baseline=verdict.baseline,
            threshold=verdict.threshold,
            change=verdict.change,
        )
        for metric, verdict in verdicts.items()
    ]
    MetricStatus.objects.using(using).bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["configuration", "metric"],
        update_fields=["label", "n", "baseline", "threshold", "change", "judged"],
    )


# Handling --------------------------------------------------------------------------------------------
def acknowledge(*, regression: Regression, who: User) -> None:
    """Says that somebody looks into it. Raises NothingToDo if it is not open."""
    _move(
        regression,
        (RegressionStatus.OPEN,),
        who,
        "regression acknowledged",
        fate=RegressionStatus.ACKNOWLEDGED,
    )


def accept(*, regression: Regression, who: User) -> None:
    """Closes it for good: what came since its first bad point is the baseline from now on."""
    _move(
        regression,
        STANDING_FATES,
        who,
        "regression accepted",
        fate=RegressionStatus.ACCEPTED,
        closed=timezone.now(),
    )
    ask_for_closing(regression)
    judge_configurations([regression.configuration_id])


def pin(*, measurement: Measurement, who: User) -> None:
    """Holds what comes against this run, beside the best level. Raises NothingToDo if its tokens differ."""
    if not measurement.verified:
        raise NothingToDo(f"Run {measurement.pk} is not verified; pin one whose tokens were found right.")
    _point_at(measurement.configuration_id, measurement, who, "reference pinned")


def unpin(*, measurement: Measurement, who: User) -> None:
    """Raises NothingToDo if this run is not the reference of its configuration."""
    if measurement.configuration.reference_id != measurement.pk:
        raise NothingToDo(f"Run {measurement.pk} is not pinned; look at its page again.")
    _point_at(measurement.configuration_id, None, who, "reference unpinned")


def _point_at(configuration: int, reference: Measurement | None, who: User, act: str) -> None:
    with transaction.atomic():
        found = Configuration.objects.select_for_update().get(pk=configuration)
        found.reference = reference
        found.save(update_fields=["reference"])
        audit.record(act, found, who=who, url=reference.get_absolute_url() if reference else "")
    judge_configurations([configuration])


def _move(regression: Regression, fates: Sequence[str], who: User, act: str, **values: Any) -> None:
    with transaction.atomic():
        rows = Regression.objects.filter(pk=regression.pk, fate__in=fates)
        if not rows.update(handler=who, **values):
            regression.refresh_from_db()
            raise NothingToDo(
                f"Regression {regression.pk} is already {regression.get_fate_display()}; "
                "look at its page again."
            )
        regression.refresh_from_db()
        audit.record(act, regression, who=who, url=regression.get_absolute_url())


def comment(*, regression: Regression, who: User, text: str) -> RegressionComment:
    """Raises ValidationError if the text is empty or too long."""
    text = text.strip()
    if not text:
        raise ValidationError("The comment is empty; write what you know or leave it.")
    if "\0" in text:
        raise ValidationError("The comment holds a null character, which cannot be stored; remove it.")
    if len(text) > COMMENT_LENGTH:
        raise ValidationError(f"The comment has {len(text)} characters; at most {COMMENT_LENGTH} are kept.")
    with transaction.atomic():
        made = RegressionComment.objects.create(
            regression=regression, who=who, by=who.get_username(), text=text
        )
        audit.record("regression commented on", regression, who=who, url=regression.get_absolute_url())
    return made


# Telling ---------------------------------------------------------------------------------------------
def ask_for_notices(regression: Regression) -> None:
    """Tells Celery to deliver the notices that are configured and not delivered yet.

    One change is one notice: its cause speaks for a regression that has one.
    """
    if regression.cause_id is not None:
        return
    emailed, called = (getattr(regression, column) for column in regression.told)
    tasks = []
    if settings.REGRESSION_EMAILS and emailed is None:
        tasks.append(EMAIL_TASK)
    if settings.REGRESSION_WEBHOOK is not None and called is None:
        tasks.append(WEBHOOK_TASK)
    if not tasks:
        return
    Regression.objects.filter(pk=regression.pk).update(asked=timezone.now())
    told = [celery_bridge.tell(name, regression.pk) for name in tasks]
    if not all(told):  # ask_again need not wait for the hour
        Regression.objects.filter(pk=regression.pk).update(asked=None)


def ask_for_closing(regression: Regression) -> None:
    """Asks for the notice that a change is over, once nothing stands any more that it caused."""
    first = regression.cause or regression
    if not first.stands and not first.effects.filter(fate__in=STANDING_FATES).exists():
        ask_for_notices(first)


def ask_again(*, now: datetime | None = None) -> None:
    """Asks once more for notices that should have been delivered by now. Called every minute."""
    now = now or timezone.now()
    late = Regression.objects.filter(cause=None).exclude(asked__gt=now - ASK_AGAIN)
    for regression in late.filter(fate=RegressionStatus.OPEN, opened__gte=now - GIVE_UP):
        ask_for_notices(regression)
    for regression in late.filter(fate__in=CLOSED_FATES, closed__gte=now - GIVE_UP):
        ask_for_closing(regression)
