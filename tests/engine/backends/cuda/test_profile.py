"""What the numbers that the kernel wrote become."""

from __future__ import annotations

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning, make_layout
from engine.backends.cuda.contract import ProfileWord, Step
from engine.backends.cuda.profile import ProfileBuffer, Words
from engine.backends.cuda.tape import plan
from engine.models.presets import load_preset
from engine.timings import phases_of

SMS = 132


def written(buffer: ProfileBuffer) -> Words:
    """Of 2 passes at 1 clock a ns: each step waited 2,000 clocks and worked 4,000 times its number."""
    words = np.zeros(buffer.size // 8, np.uint64)
    heads = words[: SMS * ProfileWord.COUNT].reshape(SMS, ProfileWord.COUNT)
    heads[:, ProfileWord.PASSES] = 2
    heads[:, [ProfileWord.ENDED_NS, ProfileWord.ENDED_CLOCK]] = 1_000_000
    for step in Step:
        heads[:, ProfileWord.TIMES + 2 * step] = 2_000
        heads[:, ProfileWord.TIMES + 2 * step + 1] = 4_000 * step
        heads[:, ProfileWord.STARVED + step] = 1_000
    return words


@pytest.mark.parametrize("name", ["tiny-llama", "qwen3-30b-a3b"])
def test_the_phases_of_a_profile_are_those_of_the_kind_of_model(name: str) -> None:
    config = load_preset(name).config
    buffer = ProfileBuffer(make_layout(plan(config, SMS), "f16", Tuning()), (0, 0))

    phases = buffer.phases_us(written(buffer))

    assert tuple(phases) == phases_of(config.experts is not None)
    assert phases["qkv"].wait_local == pytest.approx(1.0)
    assert phases["head"].work == pytest.approx(2.0 * Step.HEAD)


def test_both_products_of_experts_are_one_phase_and_the_router_another() -> None:
    config = load_preset("qwen3-30b-a3b").config
    buffer = ProfileBuffer(make_layout(plan(config, SMS), "f16", Tuning()), (0, 0))
    words = written(buffer)

    phases = buffer.phases_us(words)

    assert phases["router"].work == pytest.approx(2.0 * Step.ROUTER)
    assert phases["experts"].work == pytest.approx(2.0 * (Step.GATE_UP + Step.DOWN))
    assert phases["experts"].wait_local == pytest.approx(2.0)
    assert buffer.starved_us(words)["experts"] == pytest.approx(1.0)


def test_a_trace_has_six_steps_a_layer_of_experts() -> None:
    config = load_preset("qwen3-30b-a3b").config
    buffer = ProfileBuffer(make_layout(plan(config, SMS), "f16", Tuning()), (0, 1))

    names = [span.name for span in buffer.spans(written(buffer))[: config.layers * 6 + 2]]

    assert names[2:7] == ["attn_out 0", "router 0", "gate_up 0", "down 0", "qkv 1"]
    assert names[-2:] == ["head", "sample"]
