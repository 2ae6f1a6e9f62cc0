"""`roofline`: what memory and launches allow."""

from __future__ import annotations

import pytest

from tests.engine.cli.commands import run, run_json


def test_roofline_answers_in_json_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("roofline", "--active", "2e9", "--layers", "25", "--devices", "8", "--hardware", "h200")
    found = run_json(capsys, *argv, "--bandwidth", "read")
    assert found["launch_us"] == 1125.0
    assert round(found["rows"][0]["ceiling_tok_s"]) == 9040
    _, out, _ = run(capsys, *argv, "--mbu", "0.36", "--tokens", "50000")
    assert "8 x H200" in out
    assert "1,125 us" in out
    assert "889 tok/s" in out


@pytest.mark.parametrize("model", ["laneformer-2b", "GPT-OSS-120B", "tiny-llama"])
def test_roofline_needs_no_weights(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "roofline", "--model", model, "--devices", "8")
    assert found["bytes_per_token"]["weights"] > 0


def test_roofline_adds_the_kv_that_it_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--active", "2e9", "--context", "100", "--kv-bytes", "1000", "--hardware", "H200")
    found = run_json(capsys, "roofline", *argv)
    assert found["bytes_per_token"] == {"weights": 4e9, "kv": 100_000.0}
