"""The points of a history, read as plain columns: a page may ask for ten thousand of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import FloatField, Func, Q
from django.db.models.sql.compiler import SQLCompiler

from dashboard.measurements.metrics import Metric
from dashboard.models import Configuration, Measurement

MAX_SERIES = 6
"""More lines than this in one chart cannot be told apart."""


class Sample(NamedTuple):
    """One measurement in a history. The ends of its 95 % interval are None where no raw samples bound it."""

    key: int
    seconds: float
    """Since 1970."""
    value: float
    low: float | None
    high: float | None
    n: int
    git_sha: str
    verified: bool
    verified_kind: str

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


@dataclass(frozen=True, slots=True)
class Series:
    """One configuration's samples, the oldest first."""

    configuration: Configuration
    samples: tuple[Sample, ...] = ()


class Epoch(Func):
    """A date and time as seconds since 1970: a tenth of the cost of a datetime for each row."""

    function = "EXTRACT"
    template = "EXTRACT(EPOCH FROM %(expressions)s)"
    output_field = FloatField()

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> Any:
        template = "ROUND((julianday(%(expressions)s) - 2440587.5) * 86400.0, 3)"
        return self.as_sql(compiler, connection, template=template, **extra)


def read_series(configuration_ids: Sequence[int], metric: Metric) -> list[Series]:
    """One series a configuration, in the order asked; keys that nobody has are left out. Two queries.

    Measurements that do not have the metric (an unknown bandwidth, an n too small) are left out.
    """
    chosen = Configuration.objects.in_bulk(list(configuration_ids))
    rows = (
        Measurement.objects.filter(configuration__in=chosen)
        .annotate(the_seconds=Epoch("created"), **metric.columns())
        .filter(Q(("the_value__isnull", False)))
        .order_by("configuration", "created", "pk")
        .values_list(
            *("configuration_id", "pk", "the_seconds", "the_value", "the_low", "the_high", "the_n"),
            *("git_sha", "verified", "verified_kind"),
        )
    )
    found = {
        key: tuple(Sample._make(row[1:]) for row in of_one) for key, of_one in groupby(rows, itemgetter(0))
    }
    return [Series(chosen[key], found.get(key, ())) for key in configuration_ids if key in chosen]
