"""From a schema-1 measurement to rows: its digest, its configuration, its hot columns. No database here."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from dashboard.matrix import sampling_label
from engine.errors import MeasurementError
from engine.measurement import Measurement


def digest_of(result: Measurement) -> str:
    """SHA-256 of the canonical JSON. Raises MeasurementError for NaN or infinity, which JSON has not."""
    try:
        text = json.dumps(result.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise MeasurementError(f"the measurement cannot be written as JSON: {error}") from error
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
        "devices": len(result.devices),
        "parallelism": result.settings.parallelism,
        "context": result.settings.context,
        "tokens": result.settings.tokens,
        "sampling": sampling_label(result.settings.sampling),
    }


def columns_of(result: Measurement) -> dict[str, Any]:
    """The columns that lists sort and filter by, and the document. Raises MeasurementError on a bad date."""
    low, high = sorted(result.decode.ci95)
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
        "verified": result.verified.tokens_equal,
        "document": result.to_dict(),
    }


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise MeasurementError(f"created is {text!r}; it must be an ISO 8601 date and time") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
