"""What the API answers, as schemas; those of configurations and runs are made from their tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import create_model

from dashboard.measurements.configurations import NATURAL_KEY
from dashboard.measurements.metrics import METRICS

WHOLE = ("devices", "delay", "context", "tokens", "cached_tokens", "streams")
"""The fields of a configuration that are whole numbers; the others are texts."""
_columns: dict[str, Any] = {name: (int if name in WHOLE else str, ...) for name in NATURAL_KEY}
Configuration: Any = create_model("Configuration", __base__=Schema, id=(int, ...), **_columns)


def _figures() -> dict[str, Any]:
    """A field for each place of the metrics' `api`; places with the same beginning are one object."""
    found: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {"tok_s": {"ci95": (list[float], ...), "n": (int, ...)}}
    for metric in METRICS.values():
        *above, name = metric.api
        (groups.setdefault(above[0], {}) if above else found)[name] = (float | None, ...)
    return found | {
        name: (create_model(f"figures of {name}", __base__=Schema, **fields), ...)
        for name, fields in groups.items()
    }


Run: Any = create_model(
    "Run", __base__=Schema,
    id=(int, ...), url=(str, ...), created=(datetime, ...), git_sha=(str, ...),
    configuration=(Configuration, ...), verified=(bool, ...), verified_kind=(str, ...),
    source=(str, ...), **_figures(),
)  # fmt: skip
RunWithDocument: Any = create_model("RunWithDocument", __base__=Run, document=(dict[str, Any], ...))
RunsPage: Any = create_model("RunsPage", __base__=Schema, runs=(list[Run], ...), next=(str | None, ...))


class Status(Schema):
    metric: str
    label: str
    n: int
    baseline: float | None
    threshold: float | None
    change: float | None


ConfigurationWithStatus: Any = create_model(
    "ConfigurationWithStatus", __base__=Configuration, standings=(list[Status], ...)
)
ConfigurationsPage: Any = create_model(
    "ConfigurationsPage", __base__=Schema,
    configurations=(list[ConfigurationWithStatus], ...), next=(str | None, ...),
)  # fmt: skip


class SeriesPoint(Schema):
    run: int
    created: str
    value: float
    ci95: list[float] | None
    n: int
    git_sha: str
    verified: bool
    verified_kind: str


SeriesPage: Any = create_model(
    "SeriesPage", __base__=Schema,
    configuration=(Configuration, ...), metric=(str, ...), unit=(str, ...), more_is_better=(bool, ...),
    points=(list[SeriesPoint], ...), next=(str | None, ...),
)  # fmt: skip


class Change(Schema):
    value: float | None
    n: int
    change: float | None
    change_ci95: list[float] | None
    verdict: str | None


class Figure(Schema):
    title: str
    more_is_better: bool
    runs: list[Change]


class Difference(Schema):
    name: str
    values: list[str]


Comparison: Any = create_model(
    "Comparison", __base__=Schema,
    runs=(list[Run], ...), figures=(list[Figure], ...), differences=(dict[str, list[Difference]], ...),
)  # fmt: skip
Regression: Any = create_model(
    "Regression", __base__=Schema,
    id=(int, ...), url=(str, ...), configuration=(Configuration, ...), metric=(str, ...), fate=(str, ...),
    baseline=(float, ...), value=(float, ...), change=(float, ...), threshold=(float, ...),
    good_sha=(str, ...), bad_sha=(str, ...), since=(str, ...), opened=(str, ...), closed=(str | None, ...),
)  # fmt: skip
RegressionsPage: Any = create_model(
    "RegressionsPage",
    __base__=Schema,
    regressions=(list[Regression], ...),
    next=(str | None, ...),
)
