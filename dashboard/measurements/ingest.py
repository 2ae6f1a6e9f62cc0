"""From a schema-1 measurement to rows: its digest and its hot columns. No database here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dashboard.measurements.metrics import METRICS, Metric
from engine.errors import MeasurementError
from engine.measuring.measurement import Measurement
from engine.measuring.statistics import cluster_interval


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document's canonical JSON.

    Of the document as it was read, not of what it was read into: a field that a later version adds
    with a default must not turn a file that was imported before into a new one. Raises MeasurementError
    for what not every database can keep: NaN, infinity, and the character NUL.
    """
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise MeasurementError(f"the measurement cannot be written as JSON: {error}") from error
    if "\\u0000" in text:
        raise MeasurementError("a text holds the character NUL, which a database cannot keep")
    return hashlib.sha256(text.encode()).hexdigest()


def columns_of(result: Measurement) -> dict[str, Any]:
    """The columns that lists sort and filter by. Raises MeasurementError on a bad date or interval."""
    low, high = result.decode.ci95
    if not low <= high:
        raise MeasurementError(f"decode.tok_s.ci95 is {[low, high]}; the lower end comes first")
    return {
        "created": _instant(result.created),
        "git_sha": result.git_sha[:64],
        "ci_low": low,
        "ci_high": high,
        "samples": len(result.decode.samples),
        **{metric.column: metric.of(result) for metric in METRICS.values()},
        "verified": result.verified.passed,
        "verified_kind": result.verified.kind,
    }


def intervals_of(result: Measurement) -> dict[str, Any]:
    """The columns of its `MetricInterval`. Raises MeasurementError if a raw sample is not a finite number."""
    columns: dict[str, Any] = {"ttft_n": result.ttft_ms.n, "itl_n": result.itl_us.n}
    for metric in METRICS.values():
        if metric.interval:
            low, high = _interval(metric, result) or (None, None)
            columns |= {f"{metric.interval}_low": low, f"{metric.interval}_high": high}
    return columns


def _interval(metric: Metric, result: Measurement) -> tuple[float, float] | None:
    """Of its quantile, whole repeats drawn again; None if none were kept, or too few to bound it."""
    try:
        return cluster_interval(metric.repeats(result), metric.q)
    except ValueError as error:
        raise MeasurementError(f"a raw sample of {metric.title} cannot be true: {error}") from error


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise MeasurementError(f"created is {text!r}; it must be an ISO 8601 date and time") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
