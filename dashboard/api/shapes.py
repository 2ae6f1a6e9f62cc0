"""Rows as the API writes them. Times are ISO 8601 in UTC; docs/dashboard.md has the units."""

from __future__ import annotations

from typing import Any

from dashboard.compare.environments import Differences
from dashboard.compare.figures import Row
from dashboard.models import Configuration, Measurement, MetricStatus, Regression


def configuration(of: Configuration) -> dict[str, Any]:
    return {
        "id": of.pk,
        "model": of.model,
        "backend": of.backend,
        "hardware": of.hardware,
        "devices": of.devices,
        "parallelism": of.parallelism,
        "delay": of.delay,
        "sync": of.sync,
        "context": of.context,
        "tokens": of.tokens,
        "sampling": of.sampling,
    }


def run(of: Measurement) -> dict[str, Any]:
    """The figures of a run; null is a bandwidth that nobody knows, or an n too small for the percentile."""
    return {
        "id": of.pk,
        "url": of.get_absolute_url(),
        "created": of.created.isoformat(),
        "git_sha": of.git_sha,
        "configuration": configuration(of.configuration),
        "tok_s": {"median": of.tok_s, "ci95": [of.ci_low, of.ci_high], "n": of.samples},
        "mbu": {"datasheet": of.mbu_datasheet, "measured": of.mbu_measured},
        "ttft_ms": of.ttft_ms,
        "prefill_tok_s": of.prefill_tok_s,
        "itl_us": {"p50": of.itl_p50, "p90": of.itl_p90, "p99": of.itl_p99},
        "verified": of.verified,
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
                "title": row.figure.title,
                "more_is_better": row.figure.more_is_better,
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
