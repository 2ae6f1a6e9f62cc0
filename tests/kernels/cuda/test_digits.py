"""Activations as digits: what the kernels' split, run on the CPU, leaves of a chunk's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.backends.cuda.constants import Tuning, make_layout
from engine.backends.cuda.model_header import header
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.tape import plan
from engine.e4m3 import E4M3_LEVELS
from engine.models.storage import Storage
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.kernels.cuda.emulation.digits import EmulatedDigits
from tests.kernels.cuda.test_packed_emulation import CONFIGS

CHUNK = 32
LEAST = 2.0**-100
"""A chunk of smaller numbers is split as if it had one as large."""
F32 = np.finfo(np.float32)
RANDOM = np.random.default_rng(1).standard_normal(CHUNK)
CHUNKS = {
    "zeros": np.zeros(CHUNK),
    "zeros of both signs": np.array([0.0, -0.0] * 16),
    "both signs": RANDOM,
    "subnormal": RANDOM * 1e-40,
    "subnormal beside a small one": np.array([1e-30] + [1e-40] * 31),
    "large": RANDOM * 1e30,
    "the largest": np.array([F32.max, F32.min] * 16),
    "one large and tiny ones": np.array([1.0] + [1e-7] * 31),
    "a power of two and half steps": np.array([1.0, *((np.arange(31) + 0.5) * 2 / 65535)]),
    "just below a power of two": np.full(CHUNK, np.nextafter(np.float32(2.0), np.float32(0.0))),
}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDigits:
    return EmulatedDigits(tmp_path_factory.mktemp("digits"), header_in_mxfp4())


def header_in_mxfp4() -> str:
    weights = RandomPacked(CONFIGS[Storage.MXFP4], all_in(Storage.MXFP4), 3)
    chosen = choose_storages(weights, shard(weights.config, 1))
    layout = make_layout(plan(weights.config, 2, chosen.storages), chosen.half, Tuning(slot_units=32))
    return header(layout, filters=False)


def powers(chunks: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of each number the power of two that its chunk's largest one has, at least LEAST: [chunks, 1]."""
    largest = np.abs(chunks.astype(np.float64)).max(axis=1, keepdims=True)
    exponents: NDArray[np.int32] = np.frexp(np.maximum(largest, LEAST))[1]
    return np.ldexp(np.ones_like(largest), exponents - 1)


def expected_digits(chunks: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[chunks, 32, 4]: four bits each, the upper ones first, under the number's sign."""
    steps = np.abs(chunks.astype(np.float64)) * 65535 / (2 * powers(chunks))
    integers = np.rint(steps).astype(np.int64)
    digits = integers[..., np.newaxis] >> np.array([12, 8, 4, 0]) & 15
    return (digits | np.signbit(chunks)[..., np.newaxis] << 7).astype(np.uint8)


def check(emulated: EmulatedDigits, chunk: NDArray[np.float64]) -> None:
    """Beside other chunks, as a warp has four at a time."""
    first = chunk.astype(np.float32)
    chunks = np.stack([first, np.zeros_like(first), -np.roll(first, 5), np.ones_like(first)])

    digits, sizes = emulated.split(chunks)

    assert np.array_equal(digits, expected_digits(chunks))
    assert np.array_equal(sizes, np.broadcast_to(powers(chunks), chunks.shape))
    worth = sizes.astype(np.float64)[..., np.newaxis] / emulated.of_digits * 16.0 ** -np.arange(4)
    found = (E4M3_LEVELS[digits] * worth).sum(axis=-1)
    error = np.abs(found - chunks.astype(np.float64))
    assert (error <= 2.0**-17 * (1 + 2.0**-15) * 2 * powers(chunks)).all()


@pytest.mark.parametrize("kind", CHUNKS)
def test_digits_are_a_number_but_for_2_to_the_minus_17_of_the_next_power_of_two_over_its_chunk(
    kind: str, emulated: EmulatedDigits
) -> None:
    check(emulated, CHUNKS[kind])


@settings(max_examples=100, deadline=None)
@given(
    chunk=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=CHUNK, max_size=CHUNK)
)
def test_so_they_are_of_any_chunk(chunk: list[float], emulated: EmulatedDigits) -> None:
    check(emulated, np.array(chunk))
