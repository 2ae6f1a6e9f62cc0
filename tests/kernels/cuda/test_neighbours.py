"""Heads of 128 in two parts: SMs that are neighbours join them in shared memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.test_emulation import PREFILL_TOLERANCE
from tests.kernels.cuda.test_split_heads import ONE_HEAD, prompt
from tests.reference.test_laneformer import relative_error

TWO_QUERIES = replace(ONE_HEAD, heads=2, head_dim=128, layers=2, windows=(0, 0), context=320)
SPLIT_FROM = 16 * 16
"""Positions: sixteen blocks are what an SM's warps hold at once."""


@pytest.mark.slow
def test_parts_joined_by_neighbours_have_the_bits_of_those_that_go_by_mailbox(tmp_path: Path) -> None:
    """The kernel with filters has no neighbours. The second token is the first one with two parts."""
    weights, decoded = RandomWeights(TWO_QUERIES, 3), 3
    length = SPLIT_FROM - 1
    tokens = prompt(length + decoded, TWO_QUERIES.vocab)
    neighbours, by_mailbox = (
        EmulatedGpu(tmp_path, TWO_QUERIES, weights, 4, filters=filters).logits(
            tokens, prefilled=length, last_along=False
        )
        for filters in (False, True)
    )

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))[-decoded:]
    assert relative_error(neighbours, expected) < PREFILL_TOLERANCE
    assert np.array_equal(neighbours, by_mailbox)
