"""With keys and values in FP8 the monokernel leaves what the reference of the same rule computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning
from engine.e4m3 import quantise
from engine.kv_cache import CacheFormat
from engine.models.config import ModelConfig
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.test_emulation import GEMMA, LANEFORMER, PROMPT, SMALL
from tests.nightly import each_time_but
from tests.reference.test_laneformer import relative_error

NEW = 3
MODELS: dict[str, tuple[ModelConfig, int]] = {
    "llama": (SMALL, 2),
    "normed heads, a window": (replace(SMALL, family="qwen3", qk_norm=True, windows=(9, 0)), 3),
    "lanes, of which one is late": (
        replace(SMALL, layers=3, windows=(0, 9, 0), lanes=replace(LANEFORMER.lanes, count=2, delay=1)),
        2,
    ),
    "norms after modules, wide heads, soft caps": (replace(GEMMA, heads=2, kv_heads=1, head_dim=256), 2),
}
TOLERANCE = 2e-3
"""Of the largest logit: prompts by tiles round activations and weights of attention to FP16."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulation")


@pytest.mark.parametrize("tiles_from", [1, 1000], ids=["tiles", "shares"])
@pytest.mark.parametrize("name", each_time_but(["llama", "normed heads, a window"], MODELS))
def test_tokens_logits_and_what_is_kept_are_the_references(name: str, tiles_from: int, folder: Path) -> None:
    config, cores = MODELS[name]
    weights = RandomWeights(config, 3)
    prompt = np.random.default_rng(5).integers(0, config.vocab, PROMPT).tolist()

    gpu = EmulatedGpu(folder, config, weights, cores, Tuning(fp8_cache=True))
    tokens = gpu.generate(prompt, NEW, prefilled=PROMPT - 1, tiles_from=tiles_from)
    kept = gpu.cache(PROMPT + NEW - 1)
    logits = gpu.logits(prompt, prefilled=PROMPT - 1, tiles_from=tiles_from)

    for numbers in kept:
        np.testing.assert_array_equal(numbers, quantise(numbers))
    reference = Reference(weights, cache=CacheFormat.FP8)
    cache = reference.new_cache(PROMPT + NEW, kept)
    expected = reference.forward([*prompt, *tokens[:-1]], cache)
    assert tokens == expected[PROMPT - 1 :].argmax(axis=1).tolist()
    assert relative_error(logits[0], expected[PROMPT - 1]) < TOLERANCE
    for mine, theirs in zip(kept, cache.content(), strict=True):
        assert (mine == theirs).mean() > 0.99, "but for what lies a percent beside the middle of a step"
