"""The queries of the regression pages and of the badges elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Count, Q, QuerySet

from dashboard.models import CLOSED_FATES, STANDING_FATES, Measurement, MetricStatus, Regression

CHART_POINTS = 60


def regressions(*, closed: bool) -> QuerySet[Regression, Any]:
    """Those that stand, or those that are closed, newest first, with how many `comments_count` they have."""
    return (
        Regression.objects.filter(fate__in=CLOSED_FATES if closed else STANDING_FATES)
        .select_related("configuration", "handler")
        .annotate(comments_count=Count("comments"))
        .order_by("-opened", "-pk")
    )


def counts() -> dict[str, int]:
    """How many regressions stand and how many are closed."""
    by_fate = dict(Regression.objects.order_by().values_list("fate").annotate(n=Count("pk")))
    return {
        "standing": sum(by_fate.get(fate, 0) for fate in STANDING_FATES),
        "closed": sum(by_fate.get(fate, 0) for fate in CLOSED_FATES),
    }


def regression(pk: int) -> Regression:
    """Raises Regression.DoesNotExist."""
    return Regression.objects.select_related("configuration", "handler", "last_good", "first_bad").get(pk=pk)


def together(of: Regression) -> QuerySet[Regression, Any]:
    """The other regressions of the same change."""
    first = of.cause_id or of.pk
    same = Regression.objects.filter(Q(pk=first) | Q(cause=first)).exclude(pk=of.pk)
    return same.select_related("configuration").order_by("pk")


def points(of: Regression) -> list[Measurement]:
    """The verified measurements around it, oldest first: the newest CHART_POINTS up to its end."""
    rows = Measurement.objects.filter(
        configuration=of.configuration_id, verified=True, **{f"{of.metric}__isnull": False}
    )
    if of.closed:
        rows = rows.filter(stored__lte=of.closed)
    return list(rows.defer("document").order_by("-created", "-pk")[:CHART_POINTS])[::-1]


def standings() -> QuerySet[MetricStatus, Any]:
    """Every standing, what needs eyes first."""
    return MetricStatus.objects.select_related("configuration").order_by("label", "configuration", "metric")


def standings_of(configurations: Iterable[int], metric: str = "tok_s") -> dict[int, MetricStatus]:
    """The badge of each of those configurations, by their key. One query."""
    rows = MetricStatus.objects.filter(configuration__in=list(configurations), metric=metric)
    return {row.configuration_id: row for row in rows}
