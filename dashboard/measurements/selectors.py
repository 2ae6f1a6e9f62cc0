"""Queries for measurements: filters, the newest of each configuration, neighbours. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from dashboard.measurements.configurations import FACETS
from dashboard.models import Configuration, Measurement

TREND = 30
"""How many of its newest measurements a configuration's trend has."""
SORTS = {
    "-created": "newest first",
    "created": "oldest first",
    "-tok_s": "fastest first",
    "tok_s": "slowest first",
    "ttft_ms": "shortest time to first token",
    "itl_p50": "shortest inter-token latency",
}


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which measurements to show. Empty strings and None do not filter."""

    model: str = ""
    backend: str = ""
    hardware: str = ""
    context: int | None = None
    sampling: str = ""
    sha: str = ""
    since: date | None = None
    until: date | None = None
    verified: bool | None = None
    sort: str = "-created"


def measurements(wanted: RunFilter | None = None) -> QuerySet[Measurement]:
    """The measurements that `wanted` lets through, without their documents, with their configuration."""
    wanted = wanted or RunFilter()
    found = Measurement.objects.select_related("configuration").defer("document")
    for facet in FACETS:
        if value := getattr(wanted, facet):
            found = found.filter(**{f"configuration__{facet}": value})
    if wanted.sha:
        found = found.filter(git_sha__startswith=wanted.sha)
    if wanted.since:
        found = found.filter(created__date__gte=wanted.since)
    if wanted.until:
        found = found.filter(created__date__lte=wanted.until)
    if wanted.verified is not None:
        found = found.filter(verified=wanted.verified)
    return found.order_by(wanted.sort, "-pk")


def facet_values() -> dict[str, list[Any]]:
    """The values that each filter may take, from the configurations that have measurements."""
    return {
        facet: list(Configuration.objects.order_by(facet).values_list(facet, flat=True).distinct())
        for facet in FACETS
    }


def measurement(pk: int) -> Measurement:
    """One measurement with everything that its page shows. Raises Measurement.DoesNotExist."""
    return Measurement.objects.select_related("configuration", "point__run").get(pk=pk)


def with_documents(keys: Iterable[int]) -> dict[int, Measurement]:
    """Those measurements with their documents and configurations; keys that nobody has are left out."""
    return Measurement.objects.select_related("configuration").in_bulk(list(keys))


class Neighbours(NamedTuple):
    previous: Measurement | None
    next: Measurement | None


def neighbours(of: Measurement) -> Neighbours:
    """The measurements of the same configuration just before and just after this one."""
    same = Measurement.objects.filter(configuration=of.configuration_id).defer("document")
    before = Q(created__lt=of.created) | Q(created=of.created, pk__lt=of.pk)
    after = Q(created__gt=of.created) | Q(created=of.created, pk__gt=of.pk)
    return Neighbours(
        same.filter(before).order_by("-created", "-pk").first(),
        same.filter(after).order_by("created", "pk").first(),
    )


class Newest(NamedTuple):
    """A configuration, the key of its newest measurement, and from when its trend begins."""

    configuration: Configuration
    measurement: int
    created: datetime
    runs: int
    trend_since: datetime


def newest_of_each() -> list[Newest]:
    """Every configuration that was measured, the one measured last first. One query."""
    same = Measurement.objects.filter(configuration=OuterRef("pk")).order_by("-created", "-pk")
    count = same.order_by().values("configuration").annotate(n=Count("pk")).values("n")
    rows: QuerySet[Configuration] = Configuration.objects.annotate(
        newest=Subquery(same.values("pk")[:1]),
        newest_created=Subquery(same.values("created")[:1]),
        count=Subquery(count),
        since=Subquery(same.values("created")[TREND - 1 : TREND]),
        first=Subquery(same.order_by("created").values("created")[:1]),
    ).filter(newest__isnull=False)
    found = [
        Newest(row, row.newest, row.newest_created, row.count, row.since or row.first)  # type: ignore[attr-defined]
        for row in rows
    ]
    return sorted(found, key=lambda n: (n.created, n.measurement), reverse=True)


def measurements_by_key(keys: Iterable[int]) -> dict[int, Measurement]:
    """Those measurements, without their documents."""
    return Measurement.objects.defer("document").in_bulk(list(keys))
