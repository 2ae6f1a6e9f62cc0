"""`check`: what runs here, and what to do about the rest."""

from __future__ import annotations

import re

import pytest

from engine.backends import BACKENDS
from engine.cli import check
from engine.errors import BackendUnavailable, CheckpointError
from engine.models.catalogue import Model, open_model
from tests.engine.cli.commands import TINY, run, run_json


@pytest.mark.slow
def test_check_says_what_runs_here_and_at_what_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "check", *TINY)
    assert found["ok"] is True
    (backend,) = found["backends"]
    assert backend["backend"] == "numpy"
    assert backend["usable"] is True
    assert backend["read_gbs"][0] > 0


def test_check_fails_in_plain_words_when_the_backend_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "availability", lambda: [("cuda", False, "there is no NVIDIA driver")])
    code, out, _ = run(capsys, "check", "--model", "random:tiny-llama", "--backend", "cuda")
    assert code == 2
    assert "there is no NVIDIA driver" in out


def test_check_finds_a_backend_that_computes_wrong_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.backends.numpy_launch.choose", lambda *_args: 1)
    code, out, _ = run(capsys, "check", *TINY)
    assert code == 2
    assert "its tokens or logits differ" in out


def test_check_survives_a_backend_that_does_not_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise BackendUnavailable("the driver is too old")

    monkeypatch.setattr(check, "open_backend", refuse)
    code, out, _ = run(capsys, "check", *TINY)
    assert code == 2
    assert "the driver is too old" in out


@pytest.fixture
def everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here is every backend, and each reads 100 GB/s."""

    def find(name: str, *_: object) -> check.Finding:
        return check.Finding(name, True, "", read_gbs=(100.0,))

    monkeypatch.setattr(check, "availability", lambda: [(name, True, "") for name in BACKENDS])
    monkeypatch.setattr(check, "try_backend", find)


@pytest.mark.usefixtures("everything_runs")
def test_check_says_the_bytes_that_each_backend_will_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """NumPy keeps FP32, the others Q8_0 as it ships."""
    _, out, _ = run(capsys, "check", "--model", "random:smollm2-135m:q8_0", "--backend", "auto")
    said = dict(re.findall(r"on (\w+): (\d+) MB a token", out))
    assert {name: int(mb) for name, mb in said.items()} == {"numpy": 544, "cpu": 149, "cuda": 149}


@pytest.mark.usefixtures("everything_runs")
def test_check_says_which_backend_does_not_run_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_name: str, _model: Model) -> None:
        raise BackendUnavailable("it lacks sinks")

    monkeypatch.setattr(check, "storages", refuse)
    _, out, _ = run(capsys, "check", *TINY)
    assert "on numpy: it lacks sinks" in out


@pytest.mark.slow
def test_check_fails_when_the_model_is_missing_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str, *, seed: int | None = None) -> Model:
        if name == "laneformer-2b" and seed is None:
            raise CheckpointError("get it with `python -m engine pull laneformer-2b`")
        return open_model(name, seed=seed)

    monkeypatch.setattr(check, "open_model", missing)
    code, out, _ = run(capsys, "check", "--model", "laneformer-2b", "--backend", "numpy")
    assert code == 2
    assert "pull laneformer-2b" in out
    assert "MB a token" in out, "what the machine could do is told all the same"
