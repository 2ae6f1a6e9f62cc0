"""Heads whose positions are split over SMs: their parts are joined to what the reference computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning
from engine.models.config import ModelConfig
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.emulation.several import EmulatedRows, Request
from tests.kernels.cuda.test_emulation import GEMMA, GPT_OSS, SMALL
from tests.reference.test_laneformer import relative_error

BLOCK = 16
TOLERANCE = 1e-3
EACH_BLOCK = Tuning(blocks_a_split=1)
ONE_HEAD = replace(
    SMALL, hidden=32, layers=1, windows=(0,), heads=1, kv_heads=1, ffn=48, vocab=64, context=320
)


def shape(queries: int, head_dim: int) -> ModelConfig:
    return replace(ONE_HEAD, heads=queries, head_dim=head_dim)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of one shape are compiled once for all tests."""
    return tmp_path_factory.mktemp("split_heads")


def prompt(length: int, vocab: int) -> list[int]:
    return [int(id) for id in np.random.default_rng(5).integers(0, vocab, length)]


@pytest.mark.parametrize(
    ("config", "cores", "splits"),
    [
        (shape(3, 48), 16, 2),  # slices that do not fit the elements, as those below
        (shape(3, 48), 16, 3),
        (shape(3, 48), 16, 16),
        (shape(5, 32), 9, 5),
        (shape(5, 32), 9, 9),
        (shape(8, 256), 5, 5),  # many elements for each lane
        (shape(1, 16), 16, 16),  # more warps than pairs of elements
        (replace(SMALL, windows=(40, 0)), 7, 3),
        (replace(GEMMA, windows=(40, 0)), 9, 4),
        (shape(5, 32), 32, 2),  # two items of three query heads, one of which both have
        (shape(5, 32), 32, 7),
        (replace(GPT_OSS, heads=4, windows=(40, 0), context=256), 8, 4),  # two items of two query heads
    ],
)
def test_the_parts_of_a_head_are_joined_to_the_references_logits(
    config: ModelConfig, cores: int, splits: int, folder: Path
) -> None:
    """The last two tokens are on either side of a block's end: the first has one split less."""
    weights, tokens = RandomWeights(config, 3), prompt((splits - 1) * BLOCK + 2, config.vocab)
    gpu = EmulatedGpu(folder, config, weights, cores, EACH_BLOCK)
    assert gpu.layout.max_splits >= splits

    found, again = (gpu.logits(tokens, prefilled=len(tokens) - 2, last_along=False) for _ in range(2))

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))[-2:]
    assert relative_error(found, expected) < TOLERANCE
    assert np.array_equal(found, again)


@pytest.mark.parametrize(
    "cores", [4, pytest.param(6, marks=pytest.mark.nightly)], ids=["several items an SM", "an SM an item"]
)
def test_each_of_several_requests_has_the_tokens_that_it_has_alone(cores: int, folder: Path) -> None:
    config = replace(ONE_HEAD, heads=2, context=96)
    weights = RandomWeights(config, 3)
    alone, together = (
        EmulatedRows(EmulatedGpu(folder, config, weights, cores, EACH_BLOCK, requests=requests))
        for requests in (1, 2)
    )
    asked = [Request(prompt(length, config.vocab), 3) for length in (35, 20)]
    expected = [alone.launch([one])[0] for one in asked]

    assert together.launch(asked) == expected
