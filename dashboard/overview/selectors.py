"""The queries of the overview: a fixed number, whatever is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from dashboard.models import Configuration, Measurement, Peer

TREND = 30
"""Newest measurements of a configuration that its sparkline shows."""


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


def trends(chosen: Sequence[Newest]) -> dict[int, list[float]]:
    """The last TREND speeds of each configuration, oldest first. One query."""
    if not chosen:
        return {}
    wanted = Q()
    for one in chosen:
        wanted |= Q(configuration=one.configuration.pk, created__gte=one.trend_since)
    rows = (
        Measurement.objects.filter(wanted).order_by("created", "pk").values_list("configuration_id", "tok_s")
    )
    found: dict[int, list[float]] = {one.configuration.pk: [] for one in chosen}
    for key, speed in rows:
        found[key].append(speed)
    return {key: speeds[-TREND:] for key, speeds in found.items()}


def best_peers(configurations: Iterable[Configuration]) -> dict[int, Peer]:
    """The fastest peer measured on the same model, hardware and context, by configuration. One query."""
    wanted = {(c.model, c.hardware, c.context): [] for c in configurations}  # type: dict[tuple[str, str, int], list[Peer]]
    models = {model for model, _, _ in wanted}
    for peer in Peer.objects.filter(model__in=models).order_by("-tok_s"):
        if (key := (peer.model, peer.hardware, peer.context)) in wanted:
            wanted[key].append(peer)
    return {c.pk: peers[0] for c in configurations if (peers := wanted[c.model, c.hardware, c.context])}
