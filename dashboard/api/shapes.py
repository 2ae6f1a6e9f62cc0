"""Rows as the API writes them. Times are ISO 8601 in UTC; docs/dashboard.md has the units."""

from __future__ import annotations

from typing import Any

from dashboard.compare.environments import Differences
from dashboard.compare.figures import Row
from dashboard.measurements.configurations import values_of
from dashboard.measurements.metrics import METRICS
from dashboard.models import Configuration, Measurement, MetricStatus, Regression


def configuration(of: Configuration) -> dict[str, Any]:
    return {"id": of.pk, **values_of(of)}


def run(of: Measurement) -> dict[str, Any]:
    """The figures of a run; null is a bandwidth that nobody knows, or an n too small for the percentile."""
    figures: dict[str, Any] = {"tok_s": {"ci95": [of.ci_low, of.ci_high], "n": of.samples}}
    for metric in METRICS.values():
        *above, name = metric.api
        place = figures
        for part in above:
            place = place.setdefault(part, {})
        place[name] = getattr(of, metric.column)
    return {
        "id": of.pk,
        "url": of.get_absolute_url(),
        "created": of.created.isoformat(),
        "git_sha": of.git_sha,
        "configuration": configuration(of.configuration),
        **figures,
        "verified": of.verified,
        "verified_kind": of.verified_kind,
        "source": of.source,
    }


def standing(of: MetricStatus) -> dict[str, Any]:
    return {
        "metric": of.metric,
        "label": of.label,
        "n": of.n,
        "baseline": of.baseline,
        "threshold": of.threshold,
        "change": of.change,
    }


def regression(of: Regression) -> dict[str, Any]:
    return {
        "id": of.pk,
        "url": of.get_absolute_url(),
        "configuration": configuration(of.configuration),
        "metric": of.metric,
        "fate": of.fate,
        "baseline": of.baseline,
        "value": of.value,
        "change": of.change,
        "threshold": of.threshold,
        "good_sha": of.good_sha,
        "bad_sha": of.bad_sha,
        "since": of.since.isoformat(),
        "opened": of.opened.isoformat(),
        "closed": of.closed.isoformat() if of.closed else None,
    }


def comparison(rows: list[Row], found: Differences) -> dict[str, Any]:
    return {
        "figures": [
            {
                "title": row.metric.title,
                "more_is_better": row.metric.more_is_better,
                "runs": [
                    {
                        "value": cell.value,
                        "n": cell.n,
                        "change": cell.change,
                        "change_ci95": list(cell.interval) if cell.interval else None,
                        "verdict": cell.verdict or None,
                    }
                    for cell in row.cells
                ],
            }
            for row in rows
        ],
        "differences": {
            group: [{"name": d.name, "values": list(d.values)} for d in getattr(found, group)]
            for group in ("environment", "settings", "code")
        },
    }
