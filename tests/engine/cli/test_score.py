"""`score`: the log likelihood of a text."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engine.models.catalogue import Model
from engine.reference import Reference
from tests.engine.cli.commands import TINY, run, run_json


def exact_score(model: Model, tokens: list[int]) -> list[float]:
    reference = Reference(model.weights)
    rows = reference.forward(tokens, reference.new_cache(len(tokens))).astype(np.float64)
    logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return [float(logs[i, t]) for i, t in enumerate(tokens[1:])]


def test_score_is_the_log_softmax_of_each_next_token(
    with_letters: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").write_text("hello there, world")
    (found,) = run_json(capsys, "score", *TINY, str(tmp_path / "t"))
    exact = exact_score(with_letters, list(b"hello there, world"))
    assert found["log_likelihoods"] == pytest.approx(exact, abs=1e-5)
    assert found["log_likelihood"] == pytest.approx(sum(exact), abs=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(-sum(exact) / len(exact)), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(-sum(exact) / math.log(2) / 18, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--window", "1"), "--window is 1"), (("--window", "8", "--stride", "8"), "--stride is 8")],
)
def test_windows_that_cannot_work_are_refused(
    flags: tuple[str, ...],
    words: str,
    with_letters: Model,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "t").write_text("hello")
    code, _, err = run(capsys, "score", *TINY, str(tmp_path / "t"), *flags)
    assert code == 2
    assert words in err


def test_a_text_of_one_token_has_no_score(
    with_letters: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").write_text("h")
    code, _, err = run(capsys, "score", *TINY, str(tmp_path / "t"))
    assert code == 2
    assert "1 tokens" in err
