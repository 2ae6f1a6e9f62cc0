"""Keys and values in FP8 are those of the reference, and a run with them is verified by it."""

from __future__ import annotations

import pytest

from engine.backends.base import Job
from engine.measuring.measurement import LOGIT_LIMIT
from engine.measuring.verification import verify
from tests.gpu.machine import require_gpus
from tests.gpu.models import CONFIGS, FOUR_HEADS, Model, RandomWeights
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


@pytest.mark.parametrize(("devices", "virtual"), [(2, True), (2, False)], ids=["2v", "2"])
@pytest.mark.parametrize("name", ["four-heads", "test-laneformer", "test-gpt-oss"])
def test_several_gpus_keep_those_of_their_heads_in_fp8(
    opened: Open, name: str, devices: int, virtual: bool
) -> None:
    if not virtual:
        require_gpus(devices)
    config = FOUR_HEADS if name == FOUR_HEADS.name else CONFIGS[name]
    model = Model(config, RandomWeights(config, 3))
    backend = opened(model, devices, cache="fp8", virtual=virtual)
    prompt = sequence(config.vocab, 40)
    found = verify(backend, model, prompt, generated(backend, Job(tuple(prompt), TOKENS)))
    assert found.passed, found
    assert found.logit_rel_err is not None and found.logit_rel_err < LOGIT_LIMIT / 2
