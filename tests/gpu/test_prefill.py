"""What prefill leaves in the cache, element by element: beside FP32, beside decode, and in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.cache_content import keys_and_values
from engine.backends.cuda.launch import LaunchPlan
from engine.kv_cache import KeysAndValues
from engine.reference import Reference
from tests.gpu.cache import of_reference, require_close
from tests.gpu.models import CONFIGS, GEMMA_2_2B, LLAMA, Bf16Weights, Model, RandomWeights
from tests.gpu.scored import last_logits
from tests.gpu.test_small_models import TOLERANCE, Open, relative_error, sequence

LIMITS = {"f16": 1e-3, "bf16": 5e-3}
"""Of the largest number of a layer; activations are rounded to the weights' type."""
WAYS = {"tiles": 1, "shares": 1 << 30}
"""Tokens from which prefill goes by tiles."""


def left_in_cache(backend: CudaBackend, positions: int) -> KeysAndValues:
    context = backend.device_context
    words = backend.device.download(context.memory.kv, (backend.layout.kv_halves,), np.uint16)
    return keys_and_values(words, backend.config, positions)


def prefill(backend: CudaBackend, tokens: Sequence[int], first: int, end: int) -> None:
    """`tokens` from `first` to `end`, where the cache has those before."""
    launch = backend._start(LaunchPlan([*tokens[:end], 0], 1, first=first, prefill_end=end))
    launch.wait()
    launch.close()


def wanted_cache(model: Model, tokens: Sequence[int]) -> KeysAndValues:
    reference = Reference(model.weights)
    cache = reference.new_cache(len(tokens))
    reference.forward(list(tokens), cache)
    return of_reference(cache, model.config, len(tokens))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if not config.experts])
def test_keys_and_values_are_those_of_fp32(opened: Open, name: str, way: str) -> None:
    model = Model(CONFIGS[name], RandomWeights(CONFIGS[name], 3))
    backend = opened(model, tiles_from=WAYS[way])
    tokens = sequence(model.config.vocab, 201)
    wanted = wanted_cache(model, tokens)
    prefill(backend, tokens, 0, len(tokens))
    require_close(left_in_cache(backend, len(tokens)), wanted, LIMITS["f16"], f"{name} by {way}")


def test_decode_leaves_the_same_keys_and_values(opened: Open) -> None:
    model = Model(LLAMA, RandomWeights(LLAMA, 3))
    backend = opened(model)
    tokens = sequence(LLAMA.vocab, 201)
    backend.logits(tokens)
    by_decode = left_in_cache(backend, len(tokens))
    prefill(backend, tokens, 0, len(tokens))
    require_close(left_in_cache(backend, len(tokens)), by_decode, LIMITS["f16"], "beside decode")


@pytest.mark.parametrize("way", WAYS)
def test_a_published_shape_with_norms_after_modules_ends_in_the_logits_of_decode(
    opened: Open, way: str
) -> None:
    model = Model(GEMMA_2_2B, RandomWeights(GEMMA_2_2B, 0))
    backend = opened(model, tiles_from=WAYS[way], context=1024)
    tokens = sequence(GEMMA_2_2B.vocab, 300)
    after_prefill = last_logits(backend, tokens)
    error = relative_error(after_prefill, backend.logits(tokens)[-1])
    print(f"{GEMMA_2_2B.name} by {way}: {error:.1e}")
    assert error < TOLERANCE


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300, 511])
def test_any_length_by_tiles(opened: Open, length: int) -> None:
    model = Model(LLAMA, RandomWeights(LLAMA, 4))
    backend = opened(model, tiles_from=1)
    tokens = sequence(LLAMA.vocab, length, seed=length)
    prefill(backend, tokens, 0, length)
    require_close(
        left_in_cache(backend, length), wanted_cache(model, tokens), LIMITS["f16"], f"{length} tokens"
    )


@pytest.mark.parametrize("start", [1, 37, 128, 131])
@pytest.mark.parametrize(
    "name", ["test-llama", "head-dim-96-tied", "test-laneformer", "test-gemma2", "test-gemma3"]
)
def test_going_on_from_any_position_leaves_the_same(opened: Open, name: str, start: int) -> None:
    model = Model(CONFIGS[name], RandomWeights(CONFIGS[name], 3))
    backend = opened(model, tiles_from=1)
    tokens = sequence(model.config.vocab, 230)
    prefill(backend, tokens, 0, len(tokens))
    whole = left_in_cache(backend, len(tokens))
    prefill(backend, tokens, 0, start)
    prefill(backend, tokens, start, len(tokens))
    parts = left_in_cache(backend, len(tokens))
    if model.config.lanes.count > 1 or model.config.post_norms:  # whose columns are never in parts
        assert np.array_equal(parts.keys, whole.keys)
        assert np.array_equal(parts.values, whole.values)
    require_close(parts, wanted_cache(model, tokens), LIMITS["f16"], f"from {start}")


@pytest.mark.parametrize("length", [128, 256, 512, 1024])
def test_columns_in_parts_leave_keys_and_values_of_fp32(opened: Open, length: int) -> None:
    config = replace(LLAMA, ffn=4096, context=2048)
    model = Model(config, RandomWeights(config, 5))
    backend = opened(model, tiles_from=1)
    tokens = sequence(config.vocab, length, seed=length)
    prefill(backend, tokens, 0, length)
    require_close(
        left_in_cache(backend, length), wanted_cache(model, tokens), LIMITS["f16"], f"{length} tokens"
    )


def test_chunks_leave_the_bits_of_one_pass(opened: Open) -> None:
    config = replace(CONFIGS["test-laneformer"], context=512)
    model = Model(config, RandomWeights(config, 3))
    tokens = sequence(config.vocab, 400)
    found = []
    for options in ({}, {"prefill_chunk": 128}):
        backend = opened(model, tiles_from=1, **options)
        prefill(backend, tokens, 0, len(tokens))
        found.append(left_in_cache(backend, len(tokens)))
    assert np.array_equal(found[0].keys, found[1].keys)
    assert np.array_equal(found[0].values, found[1].values)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["test-llama", "test-gemma2", "test-gemma3"])
def test_bf16_weights(opened: Open, name: str, way: str) -> None:
    model = Model(CONFIGS[name], Bf16Weights(CONFIGS[name], 3))
    backend = opened(model, tiles_from=WAYS[way])
    tokens = sequence(model.config.vocab, 201)
    prefill(backend, tokens, 0, len(tokens))
    require_close(left_in_cache(backend, len(tokens)), wanted_cache(model, tokens), LIMITS["bf16"], "bf16")
