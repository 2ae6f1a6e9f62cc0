"""Keeps a trace beside its measurement, within limits."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from django.db import transaction

from dashboard.models import Measurement, Trace
from engine.errors import MeasurementError
from engine.measuring.trace import pack_trace, unpack_trace

MOST_SLOWDOWN = 10.0
"""Recording makes a token slower, but not by more than this."""
_UNNAMED = re.compile(r"device [0-9]+")
"""What `engine.measuring.trace` calls a device whose name it was not told."""
MAX_FILE_BYTES = 128 * 2**20
"""A file that is larger is not read at all."""


def store_trace(*, measurement: Measurement, data: bytes, source: str) -> Trace:
    """Checks a Chrome trace (JSON, or its gzip) and stores it, in place of one that was there.

    Raises MeasurementError if it is no trace, one of other devices or another speed, or too large to keep.
    """
    trace = unpack_trace(data)
    about = _about(trace)
    _check_belongs(trace, about["duration_us"], measurement)
    content = pack_trace(trace)
    if len(content) > Trace.MAX_BYTES:
        raise MeasurementError(
            f"the trace takes {len(content) / 2**20:.1f} MiB packed; at most {Trace.MAX_BYTES // 2**20} MiB"
            " are kept: record fewer tokens"
        )
    with transaction.atomic():
        stored, _ = Trace.objects.update_or_create(
            measurement=measurement,
            defaults={"content": content, "source": source[:200], **about},
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


def _check_belongs(trace: dict[str, Any], duration_us: float, measurement: Measurement) -> None:
    """Raises MeasurementError if the trace was recorded on other devices, or at another speed."""
    events = trace["traceEvents"]
    named = {e["args"]["name"].partition(": ")[2] for e in events if e["name"] == "process_name"}
    known = {str(device["name"]) for device in measurement.document["devices"]}
    if strange := sorted(name for name in named - known if not _UNNAMED.fullmatch(name)):
        raise MeasurementError(
            f"the trace was recorded on {', '.join(strange)}; run {measurement.pk} was measured on"
            f" {', '.join(sorted(known))}"
        )
    tokens = max(Counter((e["pid"], e["tid"]) for e in events if e["name"] == "sample").values(), default=1)
    token_us = 1e6 / measurement.tok_s
    if duration_us > MOST_SLOWDOWN * tokens * token_us:
        raise MeasurementError(
            f"the trace takes {duration_us / tokens:,.0f} µs a token; run {measurement.pk} took"
            f" {token_us:,.0f}: it is a trace of something else"
        )


def _about(trace: dict[str, Any]) -> dict[str, Any]:
    """How many spans on how many tracks, and how long from the first start to the last end."""
    blocks = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    return {
        "spans": len(blocks),
        "tracks": len({(event["pid"], event["tid"]) for event in blocks}),
        "duration_us": max(e["ts"] + e["dur"] for e in blocks) - min(e["ts"] for e in blocks),
    }
