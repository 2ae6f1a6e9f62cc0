"""Turning rows between the two rotary layouts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.models.checkpoints.rope_layout import turn_rows
from engine.models.rope import RopeLayout
from tests.engine.models.checkpoints.files import permute

HALF, INTERLEAVED = RopeLayout.HALF, RopeLayout.INTERLEAVED
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 8), st.integers(1, 3))


@given(SIZES)
def test_turning_there_and_back_changes_nothing(sizes: tuple[int, int, int, int]) -> None:
    lanes, heads, pairs, columns = sizes
    rows = np.arange(lanes * heads * pairs * 2 * columns).reshape(lanes, heads * pairs * 2, columns)

    there = turn_rows(rows, pairs * 2, HALF, INTERLEAVED)

    np.testing.assert_array_equal(turn_rows(there, pairs * 2, INTERLEAVED, HALF), rows)


@given(SIZES)
def test_turning_is_what_llama_cpps_converter_does(sizes: tuple[int, int, int, int]) -> None:
    _, heads, pairs, columns = sizes
    rows = np.arange(heads * pairs * 2 * columns).reshape(heads * pairs * 2, columns)

    np.testing.assert_array_equal(turn_rows(rows, pairs * 2, HALF, INTERLEAVED), permute(rows, heads))


def test_the_same_layout_is_the_same_array() -> None:
    rows = np.arange(8).reshape(4, 2)

    assert turn_rows(rows, 4, HALF, HALF) is rows
