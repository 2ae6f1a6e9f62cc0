"""Wrong tokens and wrong logits are found, whichever computation they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.backends.base import OnStep, ignore_step
from engine.errors import BackendFailure
from engine.measuring import verification
from engine.measuring.measurement import FULL, PARTIAL
from engine.measuring.torch_products import TorchProducts
from engine.measuring.verification import agrees, kept_weights, relative_error, verify
from engine.models.catalogue import Model, open_model
from engine.models.weights import DType, RandomWeights, cast_tensor
from engine.progress import Progress
from engine.reference import Reference
from tests.engine.scripted import ScriptedBackend

MODELS = [open_model("random:tiny-llama"), open_model("random:tiny-laneformer")]
PROMPT = (5, 3, 8, 1)


def greedy(model: Model, count: int) -> list[int]:
    reference = Reference(model.weights)
    cache = reference.new_cache(len(PROMPT) + count)
    logits = reference.forward(PROMPT, cache, scored_from=len(PROMPT) - 1)
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(int(logits[0].argmax()))
        logits = reference.forward(tokens[-1:], cache)
    return tokens


class FineWeights(RandomWeights):
    """Random weights that 16 bits cannot hold."""

    native = "f32"

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        return cast_tensor(super().get(name) * np.float32(1.00013), dtype)


class Honest(ScriptedBackend):
    """Computes the model's logits, scaled by an error."""

    model: Model
    error = 0.0

    def logits(
        self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step
    ) -> NDArray[np.float32]:
        on_step()
        reference = Reference(self.model.weights)
        rows = reference.forward(tokens, reference.new_cache(len(tokens)), scored_from=scored_from)
        noise = np.random.default_rng(1).standard_normal(rows.shape).astype(np.float32)
        return rows + np.float32(self.error) * np.abs(rows).mean() * noise


def backend_for(model: Model, name: str, error: float = 0.0) -> Honest:
    backend = Honest(model.config, name=name)
    backend.model, backend.error = model, error
    return backend


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.config.name)
@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_the_models_own_tokens_are_equal(model: Model, name: str) -> None:
    found = verify(backend_for(model, name), model, PROMPT, greedy(model, 12))
    assert found.tokens_equal
    assert found.logit_rel_err is not None
    assert found.logit_rel_err < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", "numpy"])
@pytest.mark.parametrize("at", [0, 5, 11])
def test_one_wrong_token_is_found(name: str, at: int) -> None:
    model = MODELS[0]
    tokens = greedy(model, 12)
    tokens[at] = (tokens[at] + 1) % model.config.vocab
    assert not verify(backend_for(model, name), model, PROMPT, tokens).tokens_equal


def test_the_error_of_the_logits_is_told() -> None:
    model = MODELS[0]
    found = verify(backend_for(model, "cpu", error=0.01), model, PROMPT, greedy(model, 12))
    assert found.logit_rel_err is not None
    assert 1e-3 < found.logit_rel_err < 5e-2


def test_a_model_too_large_for_the_reference_is_compared_at_its_first_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "CORE_WORK", 0.0)
    model = MODELS[1]
    tokens = greedy(model, 12)
    found = verify(backend_for(model, "cuda"), model, PROMPT, tokens)
    assert (found.kind, found.passed, found.tokens) == (PARTIAL, True, 12)
    assert found.against == ("reference (NumPy, FP32) at 15 positions, tokens by own full-sequence pass")
    tokens[7] += 1
    assert not verify(backend_for(model, "cuda"), model, PROMPT, tokens).tokens_equal
    wrong = verify(backend_for(model, "cuda", error=0.1), model, PROMPT, greedy(model, 12))
    assert not wrong.passed


def test_what_is_too_much_for_the_cores_goes_through_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "CORE_WORK", 0.0)
    monkeypatch.setattr(verification, "gpu_products", lambda: TorchProducts(torch, "cpu"))
    model = MODELS[1]
    found = verify(backend_for(model, "cuda"), model, PROMPT, greedy(model, 12))
    assert (found.kind, found.against) == (FULL, "reference (PyTorch on the GPU, FP32)")
    assert found.passed and found.logit_rel_err is not None and found.logit_rel_err < 1e-5


@pytest.mark.parametrize("cores", [1e12, 0.0])
def test_of_a_long_prompt_the_last_rows_are_compared(monkeypatch: pytest.MonkeyPatch, cores: float) -> None:
    monkeypatch.setattr(verification, "PROMPT_ROWS", 2)
    monkeypatch.setattr(verification, "CORE_WORK", cores)
    model = MODELS[1]
    backend, tokens = backend_for(model, "cuda"), greedy(model, 12)
    asked: list[int] = []
    logits = backend.logits
    monkeypatch.setattr(
        backend, "logits", lambda tokens, first=0: asked.append(first) or logits(tokens, first)
    )

    assert verify(backend, model, PROMPT, tokens).passed
    tokens[5] += 1
    assert not verify(backend, model, PROMPT, tokens).tokens_equal
    assert asked[0] == len(PROMPT) - 2


def test_fewer_tokens_are_compared_where_all_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[0]
    monkeypatch.setattr(verification, "TOKENS", 6)
    monkeypatch.setattr(verification, "usable_cores", lambda: 1)
    monkeypatch.setattr(verification, "CORE_WORK", model.config.parameters * (len(PROMPT) + 7.0))
    found = verify(backend_for(model, "cpu"), model, PROMPT, greedy(model, 12))
    assert (found.kind, found.tokens, found.passed) == (FULL, 6, True)


def test_logits_beyond_the_limit_do_not_pass_though_the_tokens_are_equal() -> None:
    model = MODELS[0]
    found = verify(backend_for(model, "cpu", error=0.02), model, PROMPT, greedy(model, 12))
    assert (found.tokens_equal, found.passed) == (True, False)


def test_logits_that_are_no_numbers_are_refused() -> None:
    model = MODELS[0]
    with pytest.raises(BackendFailure, match="15 of 15 rows of the backend's logits hold NaN"):
        verify(backend_for(model, "cpu", error=float("nan")), model, PROMPT, greedy(model, 12))


def test_32_bit_weights_are_compared_as_the_backend_keeps_them() -> None:
    config = MODELS[0].config
    fine = FineWeights(config)
    half = kept_weights(ScriptedBackend(config, name="cpu"), fine)
    exact = kept_weights(ScriptedBackend(config, name="numpy"), fine)
    assert np.array_equal(exact.get("head"), fine.get("head"))
    assert not np.array_equal(half.get("head"), fine.get("head"))
    assert np.array_equal(half.get("head"), fine.get("head").astype(np.float16))
    assert np.array_equal(half.get("norm"), fine.get("norm"))


def test_two_logits_within_rounding_may_swap_but_no_further_ones() -> None:
    row = np.array([[1.0, 8.0, 7.999, 7.9]], np.float32)
    assert agrees(row, [1])
    assert agrees(row, [2])
    assert not agrees(row, [3])


def test_logits_as_far_apart_as_the_two_computations_differ_may_swap_too() -> None:
    row = np.array([[1.0, 8.0, 7.95, 7.8]], np.float32)
    found = row + np.array([[0.03, -0.03, 0.03, 0.0]], np.float32)
    assert agrees(row, [2], found)
    assert not agrees(row, [3], found)


def test_one_logit_that_is_wrong_among_many_counts_as_much_as_all_of_them() -> None:
    row = np.ones((1, 100_000), np.float32)
    found = row.copy()
    found[0, 7] = 1.5
    assert relative_error(found, row) == pytest.approx(0.5)


def test_rows_that_are_not_numbers_agree_with_nothing() -> None:
    row = np.array([[1.0, np.nan, 3.0]], np.float32)
    assert not agrees(row, [2])
    assert relative_error(row, np.ones_like(row)) == float("inf")


def test_each_layer_of_the_reference_is_told_and_may_end_it() -> None:
    model, told = MODELS[0], list[Progress]()
    backend, tokens = backend_for(model, "cuda"), greedy(model, 3)

    verify(backend, model, PROMPT, tokens, on_progress=told.append)

    layers = model.config.layers
    expected = [Progress(i, layers, "layers", "comparing with the reference") for i in range(1, layers + 1)]
    assert told == expected

    def leave(_progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(backend, model, PROMPT, tokens, on_progress=leave)
