"""Tokens are scored by what the model says of them, in windows that overlap as they promise."""

from __future__ import annotations

import numpy as np
import pytest

from engine.backends import open_backend
from engine.measuring.scoring import log_likelihoods, log_softmax
from engine.models.catalogue import open_model
from engine.progress import Progress
from engine.reference import Reference

MODEL = open_model("random:tiny-llama")


def exact(tokens: list[int]) -> list[float]:
    """In one pass over all of them."""
    reference = Reference(MODEL.weights)
    rows = reference.forward(tokens, reference.new_cache(len(tokens))).astype(np.float64)
    logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return [float(logs[i, t]) for i, t in enumerate(tokens[1:])]


@pytest.mark.parametrize(("window", "stride"), [(2, 1), (7, 3), (8, 7), (16, 1), (40, 20)])
def test_windows_score_every_token_once_with_the_context_they_promise(window: int, stride: int) -> None:
    tokens = [int(t) for t in np.random.default_rng(3).integers(0, MODEL.config.vocab, 41)]
    backend = open_backend("numpy", MODEL)
    found = log_likelihoods(backend, tokens, window, stride)
    backend.close()
    # The first window is whole; each later one starts window - stride tokens before what it adds.
    expected = exact(tokens[:window])
    for start in range(stride, len(tokens) - window + stride, stride):
        expected += exact(tokens[start : start + window])[window - stride - 1 :]
    assert found == pytest.approx(expected, abs=1e-4)


def test_whoever_waits_hears_how_far_it_is() -> None:
    backend, heard = open_backend("numpy", MODEL), []
    log_likelihoods(backend, list(range(1, 11)), 4, 3, heard.append)
    backend.close()
    assert heard == [Progress(done, 10, "tokens") for done in (4, 7, 10)]


def test_probabilities_of_large_logits_add_up_to_one() -> None:
    rows = log_softmax(np.array([[1000.0, 999.0, -1000.0], [0.0, 0.0, 0.0]], np.float32))
    assert np.exp(rows).sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-12)
    assert rows[1] == pytest.approx([-np.log(3.0)] * 3)
