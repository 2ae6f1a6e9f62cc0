"""Chrome trace JSON from the spans of a launch: for chrome://tracing, Perfetto and Speedscope.

One process a device, one thread a track (an SM or a CPU thread). Viewers take overlapping blocks of one
thread as nested, so spans that merely overlap are laid on further rows of the same track.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.backends.base import TraceSpan
from engine.errors import MeasurementError
from engine.whole_numbers import is_whole

ROWS = 1000
"""Thread ids are track * ROWS + row, so that a track's rows stand together and in order."""
MAX_JSON_BYTES = 96 * 2**20
"""A trace that is larger when it is unpacked is refused."""
MAX_SPANS = 400_000
_MAX_NAME = 80
_KINDS = ("work", "wait_local", "wait_peer")


def chrome_trace(
    spans: Sequence[TraceSpan], *, devices: Sequence[str] = (), track_name: str = "track"
) -> dict[str, Any]:
    """The trace as a JSON value, https://chromium.googlesource.com/catapult "Trace Event Format".

    Complete events ("ph": "X"), `ts` and `dur` in microseconds of the launch, in order of time. `devices`
    name the processes.
    """
    events: list[dict[str, Any]] = []
    by_track: dict[tuple[int, int], list[TraceSpan]] = defaultdict(list)
    for span in spans:
        by_track[span.device, span.track].append(span)
    for device in sorted({device for device, _ in by_track}):
        name = devices[device] if device < len(devices) else f"device {device}"
        events.append(_name("process_name", f"{device}: {name}", device, 0))
    for (device, track), on_track in sorted(by_track.items()):
        rows = nested_rows(on_track)
        for row, blocks in enumerate(rows):
            suffix = f" ({row + 1})" if len(rows) > 1 else ""
            tid = track * ROWS + row
            events.append(_name("thread_name", f"{track_name} {track}{suffix}", device, tid))
            events.append({**_name("thread_sort_index", "", device, tid), "args": {"sort_index": tid}})
            events.extend(_block(span, tid) for span in blocks)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write_trace(path: Path, spans: Sequence[TraceSpan], *, devices: Sequence[str] = ()) -> None:
    """Writes the trace to `path`. Raises OSError."""
    path.write_text(json.dumps(chrome_trace(spans, devices=devices), separators=(",", ":")), encoding="utf-8")


def pack_trace(trace: Mapping[str, Any]) -> bytes:
    """The trace as gzip of its JSON; the same trace gives the same bytes."""
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), compresslevel=6, mtime=0)


def unpack_trace(data: bytes) -> dict[str, Any]:
    """A trace from JSON or its gzip, with nothing in it but what `chrome_trace` writes.

    Names of processes and threads, and complete events with their kind (work, unless they say another);
    other events are left out. Raises MeasurementError if it is none, has no event, or is too large.
    """
    try:
        events = json.loads(_inflate(data))["traceEvents"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise MeasurementError(f"this is no Chrome trace: {type(error).__name__}: {error}") from error
    if not isinstance(events, list):
        raise MeasurementError("this is no Chrome trace: `traceEvents` is not a list")
    found: list[dict[str, Any]] = []
    spans = 0
    for event in events:
        kept = _known_event(event)
        if kept is not None:
            spans += kept["ph"] == "X"
            found.append(kept)
        if spans > MAX_SPANS:
            raise MeasurementError(f"the trace has more than {MAX_SPANS:,} spans; record fewer tokens")
    if not spans:
        raise MeasurementError("the trace has no complete events (ph X); there is nothing to show")
    return {"traceEvents": found, "displayTimeUnit": "ns"}


def _inflate(data: bytes) -> bytes:
    """`data`, unpacked if it is gzip. Raises MeasurementError beyond MAX_JSON_BYTES."""
    too_large = f"the trace has more than {MAX_JSON_BYTES // 2**20} MiB when unpacked; record fewer tokens"
    if data[:2] != b"\x1f\x8b":
        if len(data) > MAX_JSON_BYTES:
            raise MeasurementError(too_large)
        return data
    inflate = zlib.decompressobj(wbits=31)
    try:
        text = inflate.decompress(data, MAX_JSON_BYTES)
    except zlib.error as error:
        raise MeasurementError(f"this is no gzip: {error}") from error
    if inflate.unconsumed_tail:
        raise MeasurementError(too_large)
    if not inflate.eof:
        raise MeasurementError("the trace's gzip is cut short")
    return text


def _known_event(event: Any) -> dict[str, Any] | None:
    """What is kept of one event; None if it is of no known kind. Raises MeasurementError if malformed."""
    if not isinstance(event, Mapping) or event.get("ph") not in ("X", "M"):
        return None
    args = event.get("args")
    args = args if isinstance(args, Mapping) else {}
    try:
        place = {"pid": _whole(event["pid"]), "tid": _whole(event["tid"])}
        name = str(event["name"])[:_MAX_NAME]
        if event["ph"] == "M":
            if name not in ("process_name", "thread_name"):
                return None
            label = str(args.get("name", ""))[:_MAX_NAME]
            return {"name": name, "ph": "M", **place, "args": {"name": label}}
        start, duration = float(event["ts"]), float(event["dur"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MeasurementError(f"an event of the trace has the wrong form: {error!r}") from error
    if not (math.isfinite(start) and math.isfinite(duration) and duration >= 0.0):
        raise MeasurementError(f"an event of the trace lasts from {start} for {duration} us; it cannot")
    kind = args.get("kind", "work")
    kind = kind if kind in _KINDS else "work"
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": start,
        "dur": duration,
        **place,
        "args": {"kind": kind},
    }


def _whole(value: Any) -> int:
    if not is_whole(value, 0, 2**53 - 1):
        raise ValueError(f"{value!r} is no process or thread")
    return value


def nested_rows(spans: Iterable[TraceSpan]) -> list[list[TraceSpan]]:
    """The spans on as few rows as first fit finds, so that two of one row are apart or one holds the other.

    Each row is sorted by start, an outer span before the inner ones that start with it.
    """
    rows: list[list[TraceSpan]] = []
    open_spans: list[list[TraceSpan]] = []
    for span in sorted(spans, key=lambda s: (s.start_us, -s.duration_us)):
        for row, stack in zip(rows, open_spans, strict=True):
            while stack and _ns(stack[-1])[1] <= _ns(span)[0]:
                stack.pop()
            if not stack or _ns(span)[1] <= _ns(stack[-1])[1]:
                row.append(span)
                stack.append(span)
                break
        else:
            rows.append([span])
            open_spans.append([span])
    return rows


def _ns(span: TraceSpan) -> tuple[int, int]:
    """Start and end in whole nanoseconds: microseconds in floating point let neighbours overlap by a bit."""
    return round(span.start_us * 1e3), round((span.start_us + span.duration_us) * 1e3)


def _block(span: TraceSpan, tid: int) -> dict[str, Any]:
    start, end = _ns(span)
    return {
        "name": span.name,
        "cat": span.kind,
        "ph": "X",
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "pid": span.device,
        "tid": tid,
        "args": {"kind": span.kind},
    }


def _name(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
