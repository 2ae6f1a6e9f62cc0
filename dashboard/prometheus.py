"""What `/metrics` says of the dashboard: read from the rows when it is scraped, the same in every process."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Count, OuterRef, Subquery
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from dashboard.measurements.configurations import NATURAL_KEY, values_of
from dashboard.models import ACTIVE, Configuration, Measurement, Regression, State, SweepRun
from dashboard.models.regressions import RegressionStatus

MAX_CONFIGURATIONS = 200
"""A scrape carries at most so many series of each metric: the configurations measured last."""
LABELS = ("configuration", *NATURAL_KEY)


class DashboardCollector:
    """Sweeps by device and state, how long the first in line has waited, regressions, newest speeds."""

    def collect(self) -> Iterator[Metric]:
        yield from _sweeps()
        yield from _regressions()
        yield from _speeds()


def exposition() -> bytes:
    """The text that Prometheus scrapes. Four queries."""
    return generate_latest(_REGISTRY)


def _sweeps() -> Iterator[Metric]:
    runs = GaugeMetricFamily(
        "monolane_sweep_runs", "Sweep runs that have not ended", labels=("device", "state")
    )
    waited = GaugeMetricFamily(
        "monolane_sweep_queue_age_seconds", "Age of the oldest queued sweep run", labels=("device",)
    )
    now = timezone.now()
    oldest: dict[str, float] = {}
    counts: dict[tuple[str, str], int] = {}
    for run in SweepRun.objects.filter(state__in=ACTIVE).only("device", "state", "created"):
        for device in run.devices:
            counts[device, run.state] = counts.get((device, run.state), 0) + 1
            if run.state == State.QUEUED:
                oldest[device] = max(oldest.get(device, 0.0), (now - run.created).total_seconds())
    for (device, state), count in sorted(counts.items()):
        runs.add_metric((device, state), count)
    for device, age in sorted(oldest.items()):
        waited.add_metric((device,), age)
    yield runs
    yield waited


def _regressions() -> Iterator[Metric]:
    family = GaugeMetricFamily("monolane_regressions", "Regressions by what became of them", labels=("fate",))
    counts = dict(Regression.objects.order_by().values_list("fate").annotate(n=Count("pk")))
    for fate in RegressionStatus.values:
        family.add_metric((fate,), counts.get(fate, 0))
    yield family


def _speeds() -> Iterator[Metric]:
    speed = GaugeMetricFamily(
        "monolane_benchmark_tokens_per_second", "Newest verified decode speed", labels=LABELS
    )
    used = GaugeMetricFamily(
        "monolane_benchmark_mbu_ratio", "Its share of the measured bandwidth", labels=LABELS
    )
    measured = GaugeMetricFamily(
        "monolane_benchmark_measured_timestamp_seconds", "When it was measured", labels=LABELS
    )
    for row in _newest():
        of = row.configuration
        labels = (str(of.pk), *(str(value) for value in values_of(of).values()))
        speed.add_metric(labels, row.tok_s)
        measured.add_metric(labels, row.created.timestamp())
        if row.mbu_measured is not None:
            used.add_metric(labels, row.mbu_measured)
    yield speed
    yield used
    yield measured


def _newest() -> list[Measurement]:
    same = Measurement.objects.filter(configuration=OuterRef("pk"), verified=True)
    newest = Subquery(same.order_by("-created", "-pk").values("pk")[:1])
    keys = Configuration.objects.annotate(newest=newest).exclude(newest=None).values_list("newest", flat=True)
    rows = Measurement.objects.filter(pk__in=list(keys)).select_related("configuration").defer("document")
    return list(rows.order_by("-created", "-pk")[:MAX_CONFIGURATIONS])


_REGISTRY = CollectorRegistry()
_REGISTRY.register(DashboardCollector())
