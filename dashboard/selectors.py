"""The queries that pages, exports and the admin read. Nothing here changes a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Avg, Count, F, Max, OuterRef, Q, QuerySet, Subquery

from dashboard.matrix import PointSpec, sampling_dict
from dashboard.models import ACTIVE, Configuration, Measurement, Point, State, Sweep, SweepRun

SORTS = {
    "-created": "newest first",
    "created": "oldest first",
    "-tok_s": "fastest first",
    "tok_s": "slowest first",
    "ttft_ms": "shortest time to first token",
    "itl_p50": "shortest inter-token latency",
}
METRICS = {
    "tok_s": ("Decode speed", "tok/s"),
    "mbu_measured": ("MBU, of measured bandwidth", "%"),
    "mbu_datasheet": ("MBU, of datasheet bandwidth", "%"),
    "ttft_ms": ("Time to first token, p50", "ms"),
    "itl_p50": ("Inter-token latency, p50", "µs"),
    "itl_p99": ("Inter-token latency, p99", "µs"),
    "prefill_tok_s": ("Prefill speed", "tok/s"),
}
FACETS = ("model", "backend", "hardware", "context", "sampling")
MAX_SERIES = 6
"""More lines than this in one chart cannot be told apart."""


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


def configurations() -> QuerySet[Configuration]:
    """Configurations by the age of their newest measurement; `count`, `newest` and `newest_tok_s` added."""
    newest = Measurement.objects.filter(configuration=OuterRef("pk")).order_by("-created", "-pk")
    return (
        Configuration.objects.annotate(count=Count("measurements"), newest=Max("measurements__created"))
        .filter(count__gt=0)
        .annotate(newest_tok_s=Subquery(newest.values("tok_s")[:1]))
        .order_by("-newest", "pk")
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement in a history: value with its spread (equal to it where the metric has none)."""

    pk: int
    created: datetime
    value: float
    low: float
    high: float
    n: int
    git_sha: str
    verified: bool


@dataclass(frozen=True, slots=True)
class Series:
    configuration: Configuration
    samples: tuple[Sample, ...] = field(default_factory=tuple)


def history(configuration_ids: Sequence[int], metric: str) -> list[Series]:
    """One series a configuration, oldest sample first, in the order asked. Units as METRICS says.

    Measurements that do not have the metric (an unknown bandwidth, an n too small) are left out.
    """
    chosen = Configuration.objects.in_bulk(list(configuration_ids))
    rows = (
        Measurement.objects.filter(configuration__in=chosen, **{f"{metric}__isnull": False})
        .order_by("created", "pk")
        .values_list(
            "configuration_id", "pk", "created", metric, "ci_low", "ci_high", "samples", "git_sha", "verified"
        )
    )
    by_configuration: dict[int, list[Sample]] = {key: [] for key in chosen}
    scale = 100.0 if metric.startswith("mbu") else 1.0
    for key, pk, created, value, low, high, n, sha, verified in rows:
        if metric != "tok_s":
            low = high = value
        by_configuration[key].append(
            Sample(pk, created, value * scale, low * scale, high * scale, n, sha, verified)
        )
    return [Series(chosen[key], tuple(by_configuration[key])) for key in configuration_ids if key in chosen]


# Sweeps ----------------------------------------------------------------------------------------------
def sweeps() -> QuerySet[Sweep]:
    """Every sweep with `active_run` (the key of its run that has not ended) and `last_state`."""
    runs = SweepRun.objects.filter(sweep=OuterRef("pk"))
    return Sweep.objects.select_related("schedule__crontab").annotate(
        active_run=Subquery(runs.filter(state__in=ACTIVE).values("pk")[:1]),
        last_run=Subquery(runs.values("pk")[:1]),
        last_state=Subquery(runs.values("state")[:1]),
    )


def sweep_runs() -> QuerySet[SweepRun]:
    """Runs, newest first, with how many of their points `failed`."""
    return (
        SweepRun.objects.select_related("who", "sweep")
        .annotate(failed=Count("points", filter=Q(points__current=True, points__state=State.FAILED)))
        .order_by("-created", "-pk")
    )


def sweep_run(pk: int) -> SweepRun:
    """One run with its `failed` count. Raises SweepRun.DoesNotExist."""
    return sweep_runs().get(pk=pk)


def points(run: SweepRun) -> QuerySet[Point]:
    """The run's points with their measurements; earlier attempts stand before the one that replaced them."""
    return Point.objects.filter(run=run).select_related("measurement").order_by("index", "attempt")


def failed_points() -> QuerySet[Point]:
    """Every failure that was ever stored, newest first, retried or not."""
    return Point.objects.filter(state=State.FAILED).select_related("run").order_by("-ended", "-pk")


class Estimate(NamedTuple):
    """Seconds that points will take, from finished ones like them; `known` of `total` had any to go by."""

    seconds: float
    known: int
    total: int


def estimate(specs: Sequence[PointSpec]) -> Estimate:
    """How long a sweep will take. One query a distinct model and backend."""
    known: dict[tuple[Any, ...], float] = {}
    for model, backend in {(s.model, s.backend) for s in specs}:
        rows = (
            Point.objects.filter(state=State.FINISHED, model=model, backend=backend)
            .values("devices", "context", "tokens", "sampling")
            .annotate(took=Avg(F("ended") - F("started")))
        )
        for row in rows:
            key = (
                model,
                backend,
                row["devices"],
                row["context"],
                row["tokens"],
                json.dumps(row["sampling"], sort_keys=True),
            )
            known[key] = row["took"].total_seconds()
    times = [known[k] for s in specs if (k := _like(s)) in known]
    return Estimate(sum(times), len(times), len(specs))


def remaining_seconds(run: SweepRun, now: datetime) -> float | None:
    """Seconds until the run ends, judging by its own finished points; None before the first."""
    own = Point.objects.filter(run=run, current=True)
    mean = own.filter(state=State.FINISHED).aggregate(mean=Avg(F("ended") - F("started")))["mean"]
    if mean is None:
        return None
    begun = own.filter(state=State.RUNNING).values_list("started", flat=True).first()
    spent = min(now - begun, mean) if begun else timedelta(0)
    return float((mean * (run.total - run.done) - spent).total_seconds())


def _like(spec: PointSpec) -> tuple[Any, ...]:
    sampling = json.dumps(sampling_dict(spec.sampling), sort_keys=True)
    return (spec.model, spec.backend, spec.devices, spec.context, spec.tokens, sampling)
