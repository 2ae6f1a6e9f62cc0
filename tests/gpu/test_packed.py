"""Packed weights on the GPU, against the NumPy reference with the numbers that their formats mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine.backends.base import Job
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.storages import choose_storages
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from engine.models.weights import RANDOM_STORAGES, RandomWeights, Weights
from engine.reference import Reference
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.models import LLAMA, AsKept, Model, RoundedProducts
from tests.gpu.scored import last_logits

Open = Callable[..., CudaBackend]
DECODE_TOLERANCE = 2e-3
PREFILL_TOLERANCE = {"bf16": 2e-2, "f16": 2e-3}
"""Prefill rounds weights and activations once, to the 16 bits that the format is unpacked to."""
TIMES_ROUNDING = 2.0
"""Where a shape's numbers make more of such rounding: how many times of what it alone does is let pass."""
SHAPES: dict[str, ModelConfig] = {
    "plain": LLAMA,
    "whole blocks": replace(LLAMA, hidden=512, ffn=1536, head_dim=128, vocab=4096),
    "odd sizes": replace(LLAMA, hidden=160, heads=6, kv_heads=2, head_dim=32, ffn=416, vocab=321),
    "normed heads": replace(LLAMA, family="qwen3", head_dim=128, qk_norm=True),
    "tied, biased": replace(LLAMA, family="qwen2", heads=14, qkv_bias=True, tied_head=True),
}


def sequence(vocab: int, length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, vocab, length).tolist()


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    assert np.isfinite(found).all()
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def check_logits(backend: CudaBackend, weights: Weights, length: int) -> None:
    config = weights.config
    chosen = choose_storages(weights, shard(config, 1))
    reference = Reference(AsKept(weights, chosen))
    tokens = sequence(config.vocab, length)
    wanted = reference.forward(tokens, reference.new_cache(length))
    rounding = Reference(AsKept(weights, chosen), products=RoundedProducts(chosen.half))
    rounded = relative_error(rounding.forward(tokens, rounding.new_cache(length))[-1], wanted[-1])
    decoded = relative_error(backend.logits(tokens), wanted)
    after_prefill = relative_error(last_logits(backend, tokens), wanted[-1])
    print(
        f"{config.name} {chosen.of(0, 0).name}: decode {decoded:.1e}, prefill {after_prefill:.1e},"
        f" rounding alone {rounded:.1e}"
    )
    assert decoded < DECODE_TOLERANCE
    assert after_prefill < max(PREFILL_TOLERANCE[chosen.half], TIMES_ROUNDING * rounded)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("storage", RANDOM_STORAGES)
def test_matrices_of_files_give_the_reference_logits(opened: Open, storage: Storage, shape: str) -> None:
    weights = RandomPacked(replace(SHAPES[shape], name=shape), all_in(storage), 3)
    backend = opened(Model(weights.config, weights))
    assert backend.storage("layers.0.w_up") is storage
    check_logits(backend, weights, 70)


@pytest.mark.parametrize("storage", [Storage.Q4_K, Storage.Q6_K])
def test_k_quants_give_the_reference_logits(opened: Open, storage: Storage) -> None:
    config = replace(SHAPES["whole blocks"], name=f"whole blocks of {storage.name}")
    weights = RandomPacked(config, all_in(storage), 3)
    backend = opened(Model(config, weights))
    assert backend.storage("layers.0.w_down") is storage
    check_logits(backend, weights, 70)


@pytest.mark.parametrize("storage", RANDOM_STORAGES)
@pytest.mark.parametrize("random", [False, True])
def test_long_prompts_go_by_tiles_of_the_copy(opened: Open, storage: Storage, random: bool) -> None:
    config = replace(LLAMA, name="long", context=512)
    weights: Weights = RandomWeights(config, 7, storage=storage)
    if not random:
        weights = RandomPacked(config, all_in(storage), 3)
    backend = opened(Model(config, weights))
    assert backend.layout.has_copy
    check_logits(backend, weights, backend.layout.tiles_from + 64)


@pytest.mark.parametrize("storage", RANDOM_STORAGES)
def test_random_matrices_are_made_on_the_gpu_as_numpy_makes_them(opened: Open, storage: Storage) -> None:
    weights = RandomWeights(LLAMA, 7, storage=storage)
    check_logits(opened(Model(LLAMA, weights)), weights, 70)


@pytest.mark.parametrize("storage", RANDOM_STORAGES)
def test_two_gpus_hold_their_parts_of_packed_matrices(opened: Open, storage: Storage) -> None:
    config = replace(LLAMA, hidden=256, ffn=1024, heads=8, kv_heads=2, head_dim=64)
    tokens = sequence(config.vocab, 40)
    for weights in (RandomPacked(config, all_in(storage), 3), RandomWeights(config, 7, storage=storage)):
        one = opened(Model(config, weights)).logits(tokens)
        two = CudaBackend(Model(config, weights), {"virtual": True}, devices=2)
        assert two.storage("layers.0.w_down") is storage
        error = relative_error(two.logits(tokens), one)
        two.close()
        print(f"two GPUs, {storage.name}: {error:.1e}")
        assert error < DECODE_TOLERANCE


def test_a_packed_model_answers_alike_each_time(opened: Open) -> None:
    weights = RandomWeights(LLAMA, 7, storage=Storage.FP8_BLOCK)
    backend = opened(Model(LLAMA, weights))
    answers = []
    for _ in range(50):
        launch = backend.launch(Job(tuple(sequence(LLAMA.vocab, 65)), 20))
        launch.wait()
        answers.append(launch.sequence())
        launch.close()
    assert all(answer == answers[0] for answer in answers)
