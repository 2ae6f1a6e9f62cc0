"""The CPU monokernel gives the reference's logits and tokens, for every feature of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.models.config import Activation, HeadKind, Lanes, ModelConfig
from engine.models.rope import Llama3Scaling, Rope, RopeLayout, YarnScaling
from engine.models.weights import DType, RandomWeights, Weights
from engine.sampling import SamplingParams

pytestmark = pytest.mark.slow

LLAMA = ModelConfig(
    "tiny", hidden=64, layers=4, heads=8, kv_heads=4, head_dim=16, ffn=96, vocab=250, context=128
)
LANES = ModelConfig(
    "tiny-lanes",
    hidden=64,
    layers=5,
    heads=16,
    kv_heads=8,
    head_dim=8,
    ffn=128,
    vocab=256,
    context=128,
    lanes=Lanes(8, 2, early_comm=False),
)
# Keys and values are kept in float16: half a unit in its last place is 2.4e-4 of a value.
TOLERANCE = 5e-4
PROMPT = 37


@dataclass(frozen=True)
class Random:
    config: ModelConfig
    weights: Weights


@contextmanager
def opened(
    name: str,
    config: ModelConfig,
    devices: int = 1,
    *,
    weights: type[RandomWeights] = RandomWeights,
    **options: object,
) -> Iterator[Backend]:
    backend = open_backend(name, Random(config, weights(config, 3)), devices=devices, options=options)
    try:
        yield backend
    finally:
        backend.close()


def prompt(config: ModelConfig, count: int = PROMPT) -> tuple[int, ...]:
    return tuple(int(t) for t in np.random.default_rng(1).integers(0, config.vocab, count))


def tokens_of(backend: Backend, job: Job) -> list[int]:
    launch = backend.launch(job)
    ids: list[int] = []
    while True:
        fresh = launch.poll(5.0)
        ids += [token.id for token in fresh]
        if not fresh and launch.outcome is not None:
            return ids


def assert_agrees(
    config: ModelConfig,
    devices: int = 1,
    *,
    weights: type[RandomWeights] = RandomWeights,
    **options: object,
) -> None:
    tokens = prompt(config)
    job = Job(tokens, 24)
    # A norm behind attention makes its output as large as the stream, and with it the rounding of the cache.
    tolerance = 2 * TOLERANCE if config.post_norms else TOLERANCE
    with (
        opened("numpy", config, weights=weights) as reference,
        opened("cpu", config, devices, weights=weights, **options) as cpu,
    ):
        expected = reference.logits(tokens)
        greedy = tokens_of(reference, job)
        for _ in range(2):  # buffers that an earlier launch left behind must not matter
            error = np.linalg.norm(cpu.logits(tokens) - expected) / np.linalg.norm(expected)
            assert error < tolerance
            assert tokens_of(cpu, job) == greedy


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_llama_equals_the_reference_for_any_team(threads: int) -> None:
    assert_agrees(LLAMA, threads=threads)


@pytest.mark.parametrize(
    "change",
    [
        {"tied_head": True},
        {"kv_heads": 1},
        {"kv_heads": 8},
        {"windows": (5, 0, 7, 40)},
        {"head_dim": 10, "ffn": 52},
        {"rope": Rope(layout=RopeLayout.INTERLEAVED)},
        {"rope": Rope(scaling=Llama3Scaling(8.0, 1.0, 4.0, 32))},
        {"hidden": 40},
    ],
    ids=["tied", "one-kv-head", "no-groups", "windows", "odd-sizes", "interleaved", "scaled-rope", "narrow"],
)
def test_each_feature_of_a_llama_equals_the_reference(change: dict[str, object]) -> None:
    assert_agrees(replace(LLAMA, **change), threads=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_every_instruction_set_equals_the_reference(isa: str) -> None:
    from engine.backends.cpu.build import runnable

    if isa not in {target.name for target in runnable()}:
        pytest.skip(f"this processor does not run {isa}")
    assert_agrees(LLAMA, threads=2, isa=isa)


def test_barriers_in_place_of_mailboxes_change_no_token() -> None:
    assert_agrees(LLAMA, threads=2, sync="barrier")


@pytest.mark.parametrize("block", [1, 2, 13, 48])
def test_any_prefill_block_gives_the_same_logits(block: int) -> None:
    assert_agrees(LLAMA, threads=2, block=block)


@pytest.mark.parametrize("devices", [2, 4])
def test_tensor_parallel_llama_equals_the_reference(devices: int) -> None:
    assert_agrees(LLAMA, devices, threads=1)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("head", list(HeadKind))
def test_lanes_on_any_number_of_devices_equal_the_reference(head: HeadKind, devices: int) -> None:
    assert_agrees(replace(LANES, lanes=replace(LANES.lanes, head=head)), devices, threads=1)


@pytest.mark.parametrize(
    "lanes",
    [
        Lanes(8, 2, early_comm=True),
        Lanes(8, 0),
        Lanes(8, 1, early_comm=False),
        Lanes(8, 2, early_comm=False, mlp_comm=False),
        Lanes(8, 2, early_comm=False, attention_comm=False),
        Lanes(8, 2, early_comm=False, sum_before_norm=True),
    ],
    ids=["early", "no-delay", "delay-1", "no-mlp-comm", "no-attention-comm", "sum-first"],
)
def test_every_lane_rule_equals_the_reference_on_two_devices(lanes: Lanes) -> None:
    assert_agrees(replace(LANES, lanes=lanes), 2, threads=2)


def test_a_slow_link_changes_no_token() -> None:
    assert_agrees(LANES, 2, threads=1, link_latency_us=50)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.9, seed=78),
        SamplingParams(temperature=0.7, top_k=7, seed=2**63 + 5),
        SamplingParams(temperature=1.3, top_p=0.8, seed=1),
        SamplingParams(temperature=1.0, min_p=0.05, seed=2),
        SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.3, seed=3),
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(frequency_penalty=0.7, presence_penalty=0.4),
        SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=1.5, logit_bias=((3, 4.0), (249, 5.0))),
    ],
    ids=["temperature", "top-k", "top-p", "min-p", "all", "penalty", "counts", "bias"],
)
def test_the_same_seed_draws_the_same_tokens_as_the_reference(sampling: SamplingParams) -> None:
    job = Job(prompt(LLAMA), 32, sampling)
    with opened("numpy", LLAMA) as reference, opened("cpu", LLAMA, threads=2) as cpu:
        assert tokens_of(cpu, job) == tokens_of(reference, job)


def test_a_launch_can_be_continued_from_any_token() -> None:
    job = Job(prompt(LLAMA), 30, SamplingParams(temperature=0.8, frequency_penalty=1.0, seed=11))
    with opened("cpu", LLAMA, threads=2) as cpu:
        whole = tokens_of(cpu, job)
        cut = replace(job, tokens=job.tokens + tuple(whole[:13]), max_tokens=17, sampled=13)
        assert whole[:13] + tokens_of(cpu, cut) == whole


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 126])
def test_prompts_around_block_ends_equal_the_reference(length: int) -> None:
    tokens = prompt(LLAMA, length)
    with opened("numpy", LLAMA) as reference, opened("cpu", LLAMA, threads=2) as cpu:
        job = Job(tokens, 2)
        assert tokens_of(cpu, job) == tokens_of(reference, job)
        expected, got = reference.logits(tokens), cpu.logits(tokens)
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < TOLERANCE


@pytest.mark.parametrize("first", [1, 63, 64, 100, 125])
def test_logits_from_a_token_on_are_those_of_the_reference(first: int) -> None:
    tokens = prompt(LLAMA, 126)
    with opened("numpy", LLAMA) as reference, opened("cpu", LLAMA, threads=2) as cpu:
        expected, got = reference.logits(tokens, first), cpu.logits(tokens, first)
    assert got.shape == (126 - first, LLAMA.vocab)
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < TOLERANCE


class Bfloat16(RandomWeights):
    """Matrices whose own type is bfloat16."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__(config, seed)
        self.native = "bf16"

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        """In float32 they are what the bits say: what the reference must multiply."""
        is_vector = "norm" in name or name.rsplit(".", 1)[-1] in ("bq", "bk", "bv")
        if is_vector or dtype != "f32":
            return super().get(name, dtype)
        bits = super().get(name, "bf16")
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


QWEN2 = replace(LLAMA, family="qwen2", qkv_bias=True, norm_eps=1e-6)
QWEN3 = replace(LLAMA, family="qwen3", qk_norm=True, tied_head=True, norm_eps=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("weights", [RandomWeights, Bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=lambda config: config.family)
def test_families_equal_the_reference(
    config: ModelConfig, weights: type[RandomWeights], devices: int
) -> None:
    assert_agrees(config, devices, weights=weights, threads=3 - devices)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        {"layer_ropes": (Rope(), None, Rope(theta=1e6), None)},
        {"layer_ropes": (None,) * 4},
        {"rope": Rope(turning=3)},
        {"rope": Rope(layout=RopeLayout.INTERLEAVED, turning=2)},
        {"rope": Rope(scaling=YarnScaling(4.0, 32, 1.14))},
        {"post_norms": True},
        {"activation": Activation.GELU_TANH},
        {"embedding_scale": 8.0},
        {"attention_scale": 0.11},
        {"attention_cap": 1.5},
        {"logit_cap": 2.0},
        {"qkv_bias": True, "qk_norm": True, "post_norms": True, "windows": (5, 0, 7, 40)},
    ],
    ids=[
        *("rotation-by-layer", "no-rotation", "partial-rotation", "partial-interleaved", "yarn"),
        *("post-norms", "gelu", "embedding-scale", "attention-scale", "attention-cap", "logit-cap", "all"),
    ],
)
def test_each_feature_of_a_family_equals_the_reference(change: dict[str, object], devices: int) -> None:
    assert_agrees(replace(LLAMA, **change), devices, threads=1)  # type: ignore[arg-type]


def test_lanes_may_have_biases_and_norms_of_heads() -> None:
    assert_agrees(replace(LANES, qkv_bias=True, qk_norm=True, post_norms=True), 2, threads=1)


def test_a_gate_far_below_zero_closes() -> None:
    class FarGates(RandomWeights):
        def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
            values = super().get(name, dtype)
            return values * values.dtype.type(400) if name.endswith("w_gate") else values

    assert_agrees(LLAMA, weights=FarGates, threads=1)
