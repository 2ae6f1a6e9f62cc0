"""The monokernel's sources run on the CPU, thread by thread, and leave what the reference computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.models.config import ModelConfig
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.gpu.models import LANEFORMER, LLAMA
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.emulation.sources import convert

PROMPT = 20
NEW = 3
PREFILL_TOLERANCE = 1e-3
"""Of the largest number of a layer: prefill rounds activations to FP16."""
SMALL = replace(
    LLAMA,
    name="emulated",
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    ffn=96,
    vocab=96,
    context=64,
    windows=(0, 0),
)
MODELS: dict[str, tuple[ModelConfig, int]] = {
    "llama": (SMALL, 2),
    "normed heads, a window": (replace(SMALL, family="qwen3", qk_norm=True, windows=(9, 0)), 3),
    "lanes, of which one is late": (
        replace(SMALL, layers=3, windows=(0, 9, 0), lanes=replace(LANEFORMER.lanes, count=2, delay=1)),
        2,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_decode_leave_the_references_keys_values_and_tokens(name: str, tmp_path: Path) -> None:
    config, cores = MODELS[name]
    weights = RandomWeights(config, 3)
    prompt = np.random.default_rng(5).integers(0, config.vocab, PROMPT).tolist()

    gpu = EmulatedGpu(tmp_path, config, weights, cores)
    tokens = gpu.generate(prompt, NEW, prefilled=PROMPT - 1)

    reference = Reference(weights)
    cache = reference.new_cache(PROMPT + NEW)
    logits = reference.forward([*prompt, *tokens[:-1]], cache)
    assert tokens == logits[PROMPT - 1 :].argmax(axis=1).tolist()
    known = PROMPT + NEW - 1
    left = gpu.cache(known)
    heads = (config.layers, config.kv_heads, -1, config.head_dim)
    for found, wanted in ((left.keys, cache.keys), (left.values, cache.values)):
        expected = wanted[:, :, :, :known].reshape(heads)
        for layer in range(config.layers):
            difference = np.abs(found[layer] - expected[layer]).max()
            assert difference < PREFILL_TOLERANCE * np.abs(expected[layer]).max()


def test_an_unknown_ptx_statement_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not know the PTX statement 'bar\.red"):
        convert('asm volatile("bar.red.popc.u32 %0, 1, %1;" : "=r"(count) : "r"(predicate));')
