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


def kv_of(capsys: pytest.CaptureFixture[str], *more: str) -> float:
    found = run_json(capsys, "roofline", "--model", "tiny-llama", "--context", "100", "--devices", "2", *more)
    return float(found["bytes_per_token"]["kv"])


def test_roofline_counts_keys_and_values_as_they_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = kv_of(capsys)
    assert kv_of(capsys, "--cache", "fp8") == plain / 2
    monkeypatch.setenv("MONOLANE_CACHE", "fp8")
    assert kv_of(capsys) == plain / 2
    assert kv_of(capsys, "--cache", "fp16") == plain


@pytest.mark.parametrize("model", [("--model", "kimi-k2.6"), ("--active", "2e9")])
def test_roofline_takes_no_format_of_a_cache_whose_shape_it_does_not_know(
    model: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "roofline", *model, "--cache", "fp8", "--devices", "2")
    assert (code, out) == (2, "")
    assert "--cache is fp8" in err and "--kv-bytes" in err
    monkeypatch.setenv("MONOLANE_CACHE", "fp8")
    assert run(capsys, "roofline", *model, "--devices", "2")[0] == 0, "that is about other models"
