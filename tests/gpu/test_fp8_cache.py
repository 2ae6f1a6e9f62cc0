"""Keys and values in FP8 are those of the reference, and a run with them is verified by it."""

from __future__ import annotations

import pytest

from engine.backends.base import Job
from engine.measuring.measurement import LOGIT_LIMIT
from engine.measuring.verification import verify
from tests.gpu.models import CONFIGS, Model, RandomWeights
from tests.gpu.test_small_models import Open, generated, sequence

TOKENS = 24


@pytest.mark.parametrize("length", [1, 40, 201])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_with_keys_and_values_in_fp8_is_verified(opened: Open, name: str, length: int) -> None:
    model = Model(CONFIGS[name], RandomWeights(CONFIGS[name], 3))
    backend = opened(model, cache="fp8")
    prompt = sequence(model.config.vocab, length)
    found = verify(backend, model, prompt, generated(backend, Job(tuple(prompt), TOKENS)))
    assert found.passed, found
    assert found.logit_rel_err is not None and found.logit_rel_err < LOGIT_LIMIT / 2
    assert backend.facts["cache"] == "fp8"
