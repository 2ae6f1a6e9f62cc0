"""A Chrome trace keeps every span, no two blocks of one row cross, and only a trace is read as one."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import TraceSpan
from engine.errors import MeasurementError
from engine.measuring import trace as trace_module
from engine.measuring.trace import chrome_trace, nested_rows, pack_trace, unpack_trace, write_trace

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


@pytest.mark.slow
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


@pytest.mark.slow
@given(spans.filter(bool))
def test_a_packed_trace_comes_back_whole(given_spans: list[TraceSpan]) -> None:
    trace = chrome_trace(given_spans, devices=("first",))
    assert blocks(unpack_trace(pack_trace(trace))) == blocks(trace)


def test_the_same_trace_gives_the_same_bytes() -> None:
    trace = chrome_trace([TraceSpan("qkv", 0, 0, 1.0, 2.0)])
    assert pack_trace(trace) == pack_trace(trace)


def test_what_viewers_add_and_nobody_draws_is_left_out() -> None:
    event = {
        "name": "qkv",
        "ph": "X",
        "ts": 1,
        "dur": 2,
        "pid": 0,
        "tid": 0,
        "args": {"kind": "lunch", "x": 1},
    }
    counter = {"name": "bytes", "ph": "C", "ts": 1, "pid": 0, "args": {"n": 5}}
    found = unpack_trace(json.dumps({"traceEvents": [event, counter, "?"], "secret": 1}).encode())
    assert found["traceEvents"] == [
        {
            "name": "qkv",
            "cat": "work",
            "ph": "X",
            "ts": 1,
            "dur": 2,
            "pid": 0,
            "tid": 0,
            "args": {"kind": "work"},
        }
    ]
    assert "secret" not in found


def _one(**changes: Any) -> bytes:
    event = {"name": "qkv", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 0, "tid": 0, **changes}
    return json.dumps({"traceEvents": [event]}).encode()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param(b"not json", "no Chrome trace", id="no-json"),
        pytest.param(b"[]", "no Chrome trace", id="no-object"),
        pytest.param(b'{"traceEvents": {}}', "not a list", id="events-no-list"),
        pytest.param(b'{"traceEvents": []}', "nothing to show", id="no-event"),
        pytest.param(b"[" * 100_000, "no Chrome trace", id="deeply-nested"),
        pytest.param(b"\x1f\x8bnot gzip", "no gzip", id="no-gzip"),
        pytest.param(gzip.compress(_one())[:-9], "cut short", id="gzip-cut-short"),
        pytest.param(_one(pid=-1), "wrong form", id="process-below-zero"),
        pytest.param(_one(tid="a"), "wrong form", id="thread-no-number"),
        pytest.param(_one(ts="soon"), "wrong form", id="start-no-number"),
        pytest.param(_one(ts=10**400), "wrong form", id="start-beyond-any-float"),
        pytest.param(_one(dur=-1.0), "cannot", id="negative-duration"),
        pytest.param(_one(ts=float("nan")), "cannot", id="start-not-finite"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(data: bytes, complaint: str) -> None:
    with pytest.raises(MeasurementError, match=complaint):
        unpack_trace(data)


@pytest.mark.parametrize("shape", [bytes, gzip.compress])
def test_a_trace_beyond_the_limit_is_refused_before_it_is_read(
    shape: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MAX_JSON_BYTES", 50)
    with pytest.raises(MeasurementError, match="record fewer tokens"):
        unpack_trace(shape(_one()))


def test_a_trace_of_too_many_spans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_SPANS", 2)
    many = chrome_trace([TraceSpan("qkv", 0, 0, float(t), 1.0) for t in range(3)])
    with pytest.raises(MeasurementError, match="more than 2 spans"):
        unpack_trace(pack_trace(many))
