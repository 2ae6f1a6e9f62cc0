"""Keeps a trace beside its measurement, within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.db import transaction

from dashboard.models import Measurement, Trace
from engine.errors import MeasurementError
from engine.measuring.trace import packed, unpacked

MAX_FILE_BYTES = 128 * 2**20
"""A file that is larger is not read at all."""


def store_trace(*, measurement: Measurement, data: bytes, source: str) -> Trace:
    """Checks a Chrome trace (JSON, or its gzip) and stores it, in place of one that was there.

    Raises MeasurementError if it is no trace, or too large to keep.
    """
    trace = unpacked(data)
    content = packed(trace)
    if len(content) > Trace.MAX_BYTES:
        raise MeasurementError(
            f"the trace takes {len(content) / 2**20:.1f} MiB packed; at most {Trace.MAX_BYTES // 2**20} MiB"
            " are kept: record fewer tokens"
        )
    with transaction.atomic():
        stored, _ = Trace.objects.update_or_create(
            measurement=measurement,
            defaults={"content": content, "source": source[:200], **_about(trace)},
        )
    return stored


def import_trace(*, measurement: Measurement, path: Path) -> Trace:
    """Reads the file and stores it. Raises MeasurementError, naming the file."""
    try:
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise MeasurementError(
                f"{path} has {size / 2**20:.0f} MiB; at most {MAX_FILE_BYTES // 2**20} are read"
            )
        return store_trace(measurement=measurement, data=path.read_bytes(), source=path.name)
    except OSError as error:
        raise MeasurementError(f"{path} cannot be read: {error.strerror}") from error


def _about(trace: dict[str, Any]) -> dict[str, Any]:
    """How many spans on how many tracks, and how long from the first start to the last end."""
    blocks = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    return {
        "spans": len(blocks),
        "tracks": len({(event["pid"], event["tid"]) for event in blocks}),
        "duration_us": max(e["ts"] + e["dur"] for e in blocks) - min(e["ts"] for e in blocks),
    }
