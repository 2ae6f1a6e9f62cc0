"""Damage between a model's weights and its logits is found on the GPU too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.backends.base import Job
from engine.backends.cuda.backend import CudaBackend
from engine.backends.running import complete
from engine.errors import BackendFailure
from engine.measuring.measurement import FULL, LOGIT_LIMIT, Verified
from engine.measuring.verification import verify
from tests.damage import PACKED, ROWS, Altered, Damaged
from tests.gpu.models import LANEFORMER, LLAMA, Model, StoredWeights

MODELS = {config.name: Model(config, StoredWeights(config, 0)) for config in (LLAMA, LANEFORMER)}
PROMPT = tuple(range(5, 42))
TOKENS = 24
Open = Callable[..., CudaBackend]


def tokens_of(backend: CudaBackend) -> list[int]:
    return [token.id for token in complete(backend, Job(PROMPT, TOKENS))]


def found_in(backend: CudaBackend, source: Model) -> Verified | None:
    """What the verification says; None if it refused logits that are not finite."""
    try:
        return verify(backend, source, PROMPT, tokens_of(backend))
    except BackendFailure:
        return None


@pytest.mark.parametrize("model", MODELS)
def test_an_undamaged_model_passes_far_within_the_limit(opened: Open, model: str) -> None:
    found = found_in(opened(MODELS[model]), MODELS[model])
    assert found is not None and found.passed
    assert (found.kind, found.tokens) == (FULL, TOKENS)
    assert found.logit_rel_err is not None and found.logit_rel_err < LOGIT_LIMIT / 3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("damage", PACKED)
def test_damage_while_packing_is_found(opened: Open, model: str, damage: str) -> None:
    source = MODELS[model]
    damaged = Model(source.config, Damaged(source.config, source.weights, *PACKED[damage]))
    found = found_in(opened(damaged), source)
    assert found is None or not found.passed


@pytest.mark.parametrize("damage", ROWS)
def test_damaged_logits_are_found(opened: Open, damage: str) -> None:
    source = MODELS[LLAMA.name]
    backend = opened(source)
    altered: Any = Altered(backend, ROWS[damage])
    try:
        assert not verify(altered, source, PROMPT, tokens_of(backend)).passed
    except BackendFailure as refused:
        assert "NaN or infinity" in str(refused)


@pytest.mark.parametrize("at", [0, 11, TOKENS - 1])
def test_a_wrong_token_is_found_wherever_it_stands(opened: Open, at: int) -> None:
    source = MODELS[LLAMA.name]
    backend = opened(source)
    tokens = tokens_of(backend)
    tokens[at] = (tokens[at] + 1) % source.config.vocab
    assert not verify(backend, source, PROMPT, tokens).passed
