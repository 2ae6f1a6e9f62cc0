"""The CPU monokernel mixes experts as the reference does: routed in the launch, multiplied as they ship."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Job
from engine.measuring.verification import verify
from engine.models.config import Activation, Experts, ModelConfig, matrix_shapes
from engine.models.presets import load_preset
from engine.models.storage import Storage
from engine.models.weights import DType, RandomWeights
from engine.timings import EXPERT_PHASES
from tests.engine.backends.cpu.test_against_reference import (
    LLAMA,
    Random,
    assert_agrees,
    opened,
    prompt,
    tokens_of,
)

GPT_OSS = load_preset("tiny-experts").config
QWEN = replace(LLAMA, qk_norm=True, experts=Experts(count=7, chosen=3))


class PackedExperts(RandomWeights):
    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__(config, seed, Storage.MXFP4)


class OneExpert(PackedExperts):
    """All tokens meet expert 4 first, and then the lowest of equal ones."""

    def get(self, name: str, dtype: DType = "f32") -> NDArray[np.float32]:
        values = super().get(name, dtype)
        if name.endswith(".router"):
            return np.zeros_like(values)
        if name.endswith(".router_bias"):
            return np.where(np.arange(len(values)) == 4, 5.0, 0.0).astype(values.dtype)
        return values


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_gpt_oss_equals_the_reference_for_any_team(threads: int) -> None:
    assert_agrees(GPT_OSS, threads=threads, weights=PackedExperts)


@pytest.mark.parametrize(
    "config",
    [
        QWEN,
        replace(QWEN, experts=Experts(count=7, chosen=3, renormalise=False)),
        replace(QWEN, experts=Experts(count=1, chosen=1)),
        replace(QWEN, experts=Experts(count=20, chosen=20), ffn=52),
        replace(GPT_OSS, swiglu_limit=0.4),
    ],
    ids=["qwen", "weights of all scores", "one expert", "all of two panels", "a low clamp"],
)
def test_experts_of_16_bits_equal_the_reference(config: ModelConfig) -> None:
    assert_agrees(config, threads=2)


@pytest.mark.parametrize(
    "change",
    [
        {"out_bias": True},
        {"sinks": True},
        {"activation": Activation.CLAMPED_SWIGLU, "swiglu_limit": 0.5},
    ],
    ids=["out bias", "sinks", "clamped"],
)
def test_what_gpt_oss_adds_to_a_llama_equals_the_reference(change: dict[str, object]) -> None:
    assert_agrees(replace(LLAMA, **change), threads=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [1, 13, 48])
def test_any_prefill_block_groups_tokens_by_expert_alike(block: int) -> None:
    assert_agrees(GPT_OSS, threads=2, block=block, weights=PackedExperts)


def test_forced_ties_and_all_tokens_on_one_expert_equal_the_reference() -> None:
    assert_agrees(GPT_OSS, threads=2, weights=OneExpert)


def test_each_expert_is_split_over_two_devices() -> None:
    assert_agrees(GPT_OSS, 2, threads=1, weights=PackedExperts)


def test_barriers_change_no_token_of_a_mixture() -> None:
    assert_agrees(GPT_OSS, threads=2, sync="barrier", weights=PackedExperts)


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_every_instruction_set_mixes_experts(isa: str) -> None:
    from engine.backends.cpu.build import runnable

    if isa not in {target.name for target in runnable()}:
        pytest.skip(f"this processor does not run {isa}")
    assert_agrees(GPT_OSS, threads=2, isa=isa, weights=PackedExperts)


def test_experts_are_kept_as_they_ship_and_the_router_in_fp32() -> None:
    with opened("cpu", GPT_OSS, threads=1, weights=PackedExperts) as cpu:
        kept = {name: cpu.storage(name) for name in matrix_shapes(GPT_OSS)}

    assert kept["layers.3.experts.5.w_down"] is Storage.MXFP4
    assert kept["layers.3.wq"] is Storage.F16
    assert kept["layers.0.router"] is None


def test_a_measurement_of_a_mixture_is_verified_with_the_weights_as_they_are_kept() -> None:
    tokens = prompt(GPT_OSS)
    with opened("cpu", GPT_OSS, threads=2, weights=PackedExperts) as cpu:
        generated = tokens_of(cpu, Job(tokens, 12))
        found = verify(cpu, Random(GPT_OSS, PackedExperts(GPT_OSS, 3)), tokens, generated)

    assert found.passed
    assert found.logit_rel_err < 1e-3


def test_repeated_launches_are_equal_to_the_bit() -> None:
    tokens = prompt(GPT_OSS)
    with opened("cpu", GPT_OSS, threads=2, weights=PackedExperts) as cpu:
        first, *others = [cpu.logits(tokens) for _ in range(3)]

    for again in others:
        np.testing.assert_array_equal(again, first)


def test_a_profile_names_router_and_experts() -> None:
    with opened("cpu", GPT_OSS, threads=2, weights=PackedExperts) as cpu:
        launch = cpu.launch(Job(prompt(GPT_OSS), 6, profile=True))
        while launch.outcome is None:
            launch.poll(1.0)

    assert tuple(launch.outcome.phases_us) == EXPERT_PHASES
    assert launch.outcome.phases_us["experts"].work > 0


def test_greedy_tokens_do_not_depend_on_the_team() -> None:
    job, found = Job(prompt(GPT_OSS), 32), []
    for threads in (1, 2):
        with opened("cpu", GPT_OSS, threads=threads, weights=PackedExperts) as cpu:
            found.append(tokens_of(cpu, job))

    assert found[0] == found[1]
