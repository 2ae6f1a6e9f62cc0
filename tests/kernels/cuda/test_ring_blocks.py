"""Contexts of more blocks than an SM's warps hold at once: the others come through the weights' ring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning
from engine.backends.cuda.units import UNIT_BYTES
from engine.kv_cache import CacheFormat
from engine.models.config import ModelConfig
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.gpu.checked_run import BEYOND_REGISTERS
from tests.gpu.models import LANEFORMER
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.emulation.several import EmulatedRows, Request
from tests.kernels.cuda.test_emulation import GPT_OSS, PREFILL_TOLERANCE
from tests.kernels.cuda.test_split_heads import ONE_HEAD, prompt
from tests.nightly import at_night
from tests.reference.test_laneformer import relative_error

BLOCK = 16
WIDE = replace(ONE_HEAD, heads=2, head_dim=256, context=512)
"""Eight of its blocks are a round: a warp has one in registers."""
ROUND = 8 * BLOCK
LANES = replace(
    WIDE, layers=3, windows=(0, 40, 0), heads=2, kv_heads=2, lanes=replace(LANEFORMER.lanes, count=2, delay=1)
)
FOLDED = BEYOND_REGISTERS["blocks-in-the-ring-of-experts"]
EXPERTS = replace(GPT_OSS, heads=2, kv_heads=1, head_dim=256, windows=(40, 0), context=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of one shape are compiled once for all tests."""
    return tmp_path_factory.mktemp("ring_blocks")


@pytest.mark.parametrize(
    ("config", "cores", "length", "tuning"),
    [
        (WIDE, 1, ROUND + 1, Tuning()),  # the first block in the ring is one of one position
        (WIDE, 1, 2 * ROUND + 4 * BLOCK + 1, Tuning()),  # two rounds, some warps with one
        at_night(WIDE, 2, 2 * (ROUND + 2 * BLOCK) + 7, Tuning()),  # two SMs
        at_night(replace(WIDE, heads=6, family="qwen3", qk_norm=True), 1, ROUND + 40, Tuning()),
        at_night(replace(WIDE, windows=(ROUND + 30,)), 1, ROUND + 75, Tuning()),
        (replace(WIDE, head_dim=32, context=640), 1, 3 * ROUND + 5 * BLOCK, Tuning()),
        # Last rounds not full.
        (replace(WIDE, head_dim=32, context=1024), 2, 6 * ROUND + 5 * BLOCK, Tuning()),
        (WIDE, 1, ROUND + 5 * BLOCK + 1, Tuning(fp8_cache=True)),
        at_night(LANES, 2, ROUND + 3 * BLOCK, Tuning()),
        at_night(EXPERTS, 2, 2 * ROUND + 3 * BLOCK + 1, Tuning()),
        at_night(FOLDED, 2, ROUND + 2, Tuning(blocks_a_split=32)),  # what checkers watch, on fewer SMs
    ],
    ids=[
        "one", "rounds", "splits", "normed", "window", "together", "parts", "fp8", "lanes", "experts",
        "folded",
    ],
)  # fmt: skip
def test_blocks_from_the_ring_leave_the_references_logits(
    config: ModelConfig, cores: int, length: int, tuning: Tuning, folder: Path
) -> None:
    """The last tokens go through decode, each of which adds to the cache what the next ones read."""
    weights, decoded = RandomWeights(config, 3), 3
    tokens = prompt(length + decoded, config.vocab)
    gpu = EmulatedGpu(folder, config, weights, cores, tuning)

    found, again = (gpu.logits(tokens, prefilled=length, last_along=False) for _ in range(2))

    reference = Reference(weights, cache=CacheFormat.FP8 if tuning.fp8_cache else CacheFormat.FP16)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))[-decoded:]
    assert relative_error(found, expected) < (2 if tuning.fp8_cache else 1) * PREFILL_TOLERANCE
    assert np.array_equal(found, again)


@pytest.mark.parametrize("windows", [at_night((0, 0)), (0, 40), (40, 40)], ids=["none", "one", "all"])
def test_decode_goes_on_where_the_first_blocks_come_through_the_ring(
    windows: tuple[int, int], folder: Path
) -> None:
    """The pass that is the first of them is not the launch's first; with windows alone it brings nothing."""
    config = replace(WIDE, layers=2, windows=windows)
    weights, prefilled, decoded = RandomWeights(config, 3), ROUND - 2, 8
    tokens = prompt(prefilled + decoded, config.vocab)

    found = EmulatedGpu(folder, config, weights, 2).logits(tokens, prefilled=prefilled, last_along=False)

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))[-decoded:]
    assert relative_error(found, expected) < PREFILL_TOLERANCE


def test_blocks_from_the_ring_have_the_bits_of_those_that_several_requests_load(folder: Path) -> None:
    weights, length = RandomWeights(WIDE, 3), ROUND + 4 * BLOCK - 1
    alone, together = (
        EmulatedRows(EmulatedGpu(folder, WIDE, weights, 2, Tuning(blocks_a_split=32), requests=requests))
        for requests in (1, 2)
    )
    asked = [Request(prompt(length, WIDE.vocab), 3, prefilled=length - 1), Request(prompt(5, WIDE.vocab), 3)]
    expected = [alone.launch([one])[0] for one in asked]

    assert together.launch(asked) == expected


def test_blocks_beyond_the_first_round_are_what_the_ring_brings_more_after_a_long_context(
    folder: Path,
) -> None:
    gpu = EmulatedGpu(folder, WIDE, RandomWeights(WIDE, 3), 1)

    def copied(length: int) -> int:
        tokens = prompt(length + 3, WIDE.vocab)
        gpu.logits(tokens, prefilled=length, last_along=False)
        before = gpu.library.copied_bytes()
        gpu.logits(tokens, first=length, prefilled=length, last_along=False)
        return int(gpu.library.copied_bytes() - before)

    more = 3 * 12 * 2 * BLOCK * WIDE.head_dim * 2  # passes, blocks, keys and values
    ring = gpu.layout.slots_of(filters=False) * gpu.layout.slot_units * UNIT_BYTES
    assert abs(copied(2 * ROUND + 4 * BLOCK) - copied(ROUND - BLOCK) - more) <= ring, (
        "what is asked for ahead"
    )
