"""From a schema-1 measurement to rows: its digest, its configuration, its hot columns. No database here."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dashboard.sweeps.matrix import sampling_label
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


def hardware_of(result: Measurement) -> str:
    """ "NVIDIA H200", "2 x NVIDIA H200", or the different names joined by " + "."""
    names = Counter(device.name for device in result.devices)
    return " + ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())


def configuration_of(result: Measurement) -> dict[str, Any]:
    """The natural key of its `Configuration`."""
    return {
        "model": result.model.name,
        "backend": result.backend,
        "hardware": hardware_of(result),
        "devices": result.settings.devices,
        "parallelism": result.settings.parallelism,
        "delay": result.settings.delay,
        "sync": result.settings.sync,
        "context": result.settings.context,
        "tokens": result.settings.tokens,
        "sampling": sampling_label(result.settings.sampling),
    }


def columns_of(result: Measurement) -> dict[str, Any]:
    """The columns that lists sort and filter by. Raises MeasurementError on a bad date or interval."""
    low, high = result.decode.ci95
    if not low <= high:
        raise MeasurementError(f"decode.tok_s.ci95 is {[low, high]}; the lower end comes first")
    return {
        "created": _instant(result.created),
        "git_sha": result.git_sha[:64],
        "tok_s": result.decode.median,
        "ci_low": low,
        "ci_high": high,
        "samples": len(result.decode.samples),
        "mbu_datasheet": result.mbu.datasheet,
        "mbu_measured": result.mbu.measured,
        "ttft_ms": result.ttft_ms.p50,
        "prefill_tok_s": result.prefill.tok_s,
        "itl_p50": result.itl_us.p50,
        "itl_p90": result.itl_us.p90,
        "itl_p99": result.itl_us.p99,
        "verified": result.verified.passed,
    }


def intervals_of(result: Measurement) -> dict[str, Any]:
    """The columns of its `MetricInterval`. Raises MeasurementError if a raw sample is not a finite number."""
    samples = result.samples
    try:
        intervals = {
            "ttft": cluster_interval([[s] for s in samples.ttft_ms], 0.5),
            "prefill": cluster_interval([[s] for s in samples.prefill_tok_s], 0.5),
            "itl_p50": cluster_interval(samples.itl_us, 0.5),
            "itl_p99": cluster_interval(samples.itl_us, 0.99),
        }
    except ValueError as error:
        raise MeasurementError(f"a raw sample of the latencies cannot be true: {error}") from error
    columns: dict[str, Any] = {"ttft_n": result.ttft_ms.n, "itl_n": result.itl_us.n}
    for name, interval in intervals.items():
        columns[f"{name}_low"], columns[f"{name}_high"] = interval or (None, None)
    return columns


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise MeasurementError(f"created is {text!r}; it must be an ISO 8601 date and time") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
