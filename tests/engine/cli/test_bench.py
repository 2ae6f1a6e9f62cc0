"""`bench`: a measurement printed and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.measuring.measurement import Measurement, read_measurements
from tests.engine.cli.commands import TINY, run, run_json


@pytest.mark.usefixtures("short_bench")
def test_bench_prints_and_writes_schema_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.json"
    argv = ("bench", *TINY, "--context", "16", "--tokens", "8", "--repeats", "2", "--out", str(out))
    printed = Measurement.from_dict(run_json(capsys, *argv))
    assert read_measurements(out) == [printed]
    assert (printed.settings.context, printed.settings.tokens, printed.settings.repeats) == (16, 8, 2)


@pytest.mark.usefixtures("short_bench")
def test_bench_of_several_contexts_is_a_table_and_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.json"
    argv = ("bench", *TINY, "--context", "8", "24", "--tokens", "4", "--repeats", "1", "--out", str(out))
    code, text, _ = run(capsys, *argv)
    assert code == 0
    assert [m.settings.context for m in read_measurements(out)] == [8, 24]
    assert "tok/s" in text
    assert "n too small" in text
    assert text.count("tokens equal") == 2
    assert "gate_up" in text


@pytest.mark.usefixtures("short_bench")
def test_bench_writes_a_trace_of_the_asked_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.json"
    argv = ("bench", *TINY, "--context", "8", "--tokens", "4", "--repeats", "1")
    assert run(capsys, *argv, "--trace", str(trace), "--trace-tokens", "1:2")[0] == 0
    blocks = [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert blocks.count("sample") == 1
    assert blocks.count("qkv 0") == 1


@pytest.mark.usefixtures("short_bench")
def test_bench_says_no_when_the_tokens_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.measuring.verification.agrees", lambda *_rows: False)
    code, out, _ = run(capsys, "bench", *TINY, "--context", "8", "--tokens", "4", "--repeats", "1")
    assert code == 1
    assert "DIFFERENT" in out
