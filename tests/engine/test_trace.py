"""A Chrome trace keeps every span, and no two blocks of one row cross."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import TraceSpan
from engine.trace import chrome_trace, nested_rows, write_trace

spans = st.lists(
    st.builds(
        TraceSpan,
        name=st.sampled_from(["qkv 0", "attention 0", "down 3"]),
        device=st.integers(0, 2),
        track=st.integers(0, 3),
        start_us=st.integers(0, 40).map(float),
        duration_us=st.integers(0, 12).map(float),
        kind=st.sampled_from(["work", "wait_local", "wait_peer"]),
    ),
    max_size=60,
)


def blocks(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


@given(spans)
def test_every_span_becomes_one_block_with_its_time_and_place(given_spans: list[TraceSpan]) -> None:
    found = sorted(
        (b["name"], b["pid"], b["tid"] // 1000, b["ts"], b["dur"], b["cat"])
        for b in blocks(chrome_trace(given_spans))
    )
    assert found == sorted(
        (s.name, s.device, s.track, s.start_us, s.duration_us, s.kind) for s in given_spans
    )


@given(spans)
def test_blocks_of_one_row_are_apart_or_one_holds_the_other(given_spans: list[TraceSpan]) -> None:
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for block in blocks(chrome_trace(given_spans)):
        rows[block["pid"], block["tid"]].append((block["ts"], block["ts"] + block["dur"]))
    for row in rows.values():
        for i, (start, end) in enumerate(row):
            for other_start, other_end in row[i + 1 :]:
                apart = other_start >= end or other_end <= start
                holds = (start <= other_start and other_end <= end) or (
                    other_start <= start and end <= other_end
                )
                assert apart or holds


@given(spans)
def test_a_rows_blocks_are_in_order_of_time(given_spans: list[TraceSpan]) -> None:
    for row in nested_rows(given_spans):
        assert [s.start_us for s in row] == sorted(s.start_us for s in row)


def test_spans_that_never_overlap_need_one_row() -> None:
    assert len(nested_rows([TraceSpan("qkv", 0, 0, float(t), 1.0) for t in range(20)])) == 1


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(0, 10**9))
def test_spans_measured_one_after_another_need_one_row(lengths_ns: list[int], now_ns: int) -> None:
    measured = []
    for length in lengths_ns:
        measured.append(TraceSpan("qkv", 0, 0, now_ns / 1e3, length / 1e3))
        now_ns += length
    assert len(nested_rows(measured)) == 1


def test_devices_and_tracks_carry_their_names() -> None:
    trace = chrome_trace([TraceSpan("qkv", 1, 7, 0.0, 1.0)], devices=("first", "second"), track_name="SM")
    names = {(e["name"], e["args"].get("name")) for e in trace["traceEvents"] if e["ph"] == "M"}
    assert ("process_name", "1: second") in names
    assert ("thread_name", "SM 7") in names


def test_a_trace_file_is_json_that_viewers_read(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", [TraceSpan("qkv", 0, 0, 1.5, 2.5)])
    data = json.loads((tmp_path / "t.json").read_text())
    assert [(b["name"], b["ts"], b["dur"]) for b in blocks(data)] == [("qkv", 1.5, 2.5)]
