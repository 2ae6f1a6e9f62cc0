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
from tests.nightly import at_night
from tests.reference.test_laneformer import relative_error

BLOCK = 16
TOLERANCE = 1e-3
EACH_BLOCK = Tuning(blocks_a_split=1, pairs_until=0)
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
        at_night(shape(3, 48), 16, 3),
        (shape(3, 48), 16, 16),
        at_night(shape(5, 32), 9, 5),
        at_night(shape(5, 32), 9, 9),
        at_night(shape(8, 256), 5, 5),  # many elements for each lane
        at_night(shape(1, 16), 16, 16),  # more warps than pairs of elements
        (replace(SMALL, windows=(40, 0)), 7, 3),
        at_night(replace(GEMMA, windows=(40, 0)), 9, 4),
        at_night(shape(5, 32), 32, 2),  # two items of three query heads, one of which both have
        at_night(shape(5, 32), 32, 7),
        (replace(GPT_OSS, heads=4, windows=(40, 0), context=256), 8, 4),  # two items of two query heads
    ],
)
def test_the_parts_of_a_head_are_joined_to_the_references_logits(
    config: ModelConfig, cores: int, splits: int, folder: Path
) -> None:
    """The last two tokens are on either side of a block's end: the first has one split less."""
    weights, tokens = RandomWeights(config, 3), prompt((splits - 1) * BLOCK + 2, config.vocab)
    gpu = EmulatedGpu(folder, config, weights, cores, EACH_BLOCK)
    assert gpu.layout.cut.splits >= splits

    found, again = (gpu.logits(tokens, prefilled=len(tokens) - 2, last_along=False) for _ in range(2))

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))[-2:]
    assert relative_error(found, expected) < TOLERANCE
    assert np.array_equal(found, again)


@pytest.mark.parametrize(
    "config",
    [
        shape(4, 32),
        shape(3, 48),  # the second pair begins with a head that the first one has too
        at_night(replace(shape(4, 32), family="qwen3", qk_norm=True)),
        # A layer that stays with pairs; two rounds of a slice.
        at_night(replace(shape(4, 128), layers=2, windows=(40, 0))),
    ],
    ids=["four query heads", "three", "normed heads", "a window"],
)
def test_pairs_of_query_heads_give_way_to_all_of_a_kv_head_where_positions_are_many(
    config: ModelConfig, folder: Path
) -> None:
    """A KV head and its pairs are split over up to 16 and 8 of the SMs."""
    weights, until, length = RandomWeights(config, 3), 7 * BLOCK, 7 * BLOCK + 3
    tokens = prompt(length, config.vocab)
    gpu = EmulatedGpu(folder, config, weights, 16, replace(EACH_BLOCK, pairs_until=until))
    assert gpu.layout.short_blocks == 7

    found = gpu.logits(tokens, prefilled=until - 2, last_along=False)

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(length))[until - 2 :]
    assert relative_error(found, expected) < TOLERANCE


def test_pairs_give_the_bits_of_whole_kv_heads_where_both_are_split_alike(folder: Path) -> None:
    config = shape(4, 32)
    weights, tokens = RandomWeights(config, 3), prompt(5 * BLOCK + 2, config.vocab)
    pairs, whole = (
        EmulatedGpu(folder, config, weights, 16, replace(EACH_BLOCK, pairs_until=until)).logits(
            tokens, prefilled=len(tokens) - 3, last_along=False
        )
        for until in (config.context, 0)
    )
    assert np.array_equal(pairs, whole)


@pytest.mark.parametrize("cores", [4, at_night(6)], ids=["several items an SM", "an SM an item"])
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


def test_a_request_in_pairs_beside_one_of_more_positions_has_the_tokens_that_it_has_alone(
    folder: Path,
) -> None:
    """One is past the positions that go in pairs."""
    config = replace(ONE_HEAD, heads=4, context=32)
    weights, tuning = RandomWeights(config, 3), replace(EACH_BLOCK, pairs_until=BLOCK)
    alone, together = (
        EmulatedRows(EmulatedGpu(folder, config, weights, 16, tuning, requests=requests))
        for requests in (1, 2)
    )
    asked = [
        Request(prompt(BLOCK + 3, config.vocab), 2, prefilled=BLOCK + 1),
        Request(prompt(3, config.vocab), 2),
    ]
    expected = [alone.launch([one])[0] for one in asked]

    assert together.launch(asked) == expected
