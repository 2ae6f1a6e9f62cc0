"""Chrome trace JSON from the spans of a launch: for chrome://tracing, Perfetto and Speedscope.

One process a device, one thread a track (an SM or a CPU thread). Viewers take overlapping blocks of one
thread as nested, so spans that merely overlap are laid on further rows of the same track.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine.backends.base import TraceSpan

ROWS = 1000
"""Thread ids are track * ROWS + row, so that a track's rows stand together and in order."""


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
        events.append(_named("process_name", f"{device}: {name}", device, 0))
    for (device, track), on_track in sorted(by_track.items()):
        rows = nested_rows(on_track)
        for row, blocks in enumerate(rows):
            suffix = f" ({row + 1})" if len(rows) > 1 else ""
            tid = track * ROWS + row
            events.append(_named("thread_name", f"{track_name} {track}{suffix}", device, tid))
            events.append({**_named("thread_sort_index", "", device, tid), "args": {"sort_index": tid}})
            events.extend(_block(span, tid) for span in blocks)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write_trace(path: Path, spans: Sequence[TraceSpan], *, devices: Sequence[str] = ()) -> None:
    """Writes the trace to `path`. Raises OSError."""
    path.write_text(json.dumps(chrome_trace(spans, devices=devices), separators=(",", ":")), encoding="utf-8")


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


def _named(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
