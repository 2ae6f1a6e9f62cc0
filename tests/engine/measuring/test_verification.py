"""Wrong tokens and wrong logits are found, whichever computation they are compared with."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.measuring import verification
from engine.measuring.verification import agrees, relative_error, verify
from engine.models.catalogue import Model, open_model
from engine.reference import Reference
from tests.engine.scripted import ScriptedBackend

MODELS = [open_model("random:tiny-llama"), open_model("random:tiny-laneformer")]
PROMPT = (5, 3, 8, 1)


def greedy(model: Model, count: int) -> list[int]:
    reference = Reference(model.weights)
    cache = reference.new_cache(len(PROMPT) + count)
    logits = reference.forward(PROMPT, cache, logits="last")
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(int(logits[0].argmax()))
        logits = reference.forward(tokens[-1:], cache, logits="last")
    return tokens


class Honest(ScriptedBackend):
    """Computes the model's logits, scaled by an error."""

    model: Model
    error = 0.0

    def logits(self, tokens: object) -> NDArray[np.float32]:
        reference = Reference(self.model.weights)
        rows = reference.forward(list(tokens), reference.new_cache(len(list(tokens))))  # type: ignore[call-overload]
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


def test_a_model_too_large_for_the_reference_is_compared_with_its_own_whole_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "REFERENCE_WORK", 1.0)
    model = MODELS[1]
    tokens = greedy(model, 12)
    found = verify(backend_for(model, "cuda"), model, PROMPT, tokens)
    assert (found.against, found.tokens_equal, found.logit_rel_err) == ("own full-sequence pass", True, None)
    tokens[7] += 1
    assert not verify(backend_for(model, "cuda"), model, PROMPT, tokens).tokens_equal


def test_a_long_prompt_is_read_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_CHUNK", 2)
    model = MODELS[0]
    assert verify(backend_for(model, "cpu"), model, PROMPT, greedy(model, 6)).tokens_equal


def test_two_logits_within_rounding_may_swap_but_no_further_ones() -> None:
    row = np.array([[1.0, 8.0, 7.999, 7.9]], np.float32)
    assert agrees(row, [1])
    assert agrees(row, [2])
    assert not agrees(row, [3])


def test_rows_that_are_not_numbers_agree_with_nothing() -> None:
    row = np.array([[1.0, np.nan, 3.0]], np.float32)
    assert not agrees(row, [2])
    assert relative_error(row, np.ones_like(row)) == float("inf")
