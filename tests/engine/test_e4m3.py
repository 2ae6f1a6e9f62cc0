"""Numbers of E4M3: what each code means, against PyTorch, and the rule that rounds to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.e4m3 import E4M3_LARGEST, E4M3_LEVELS, e4m3_codes, quantise

CODES = np.arange(256, dtype=np.uint8)
FINITE = CODES[CODES & 0x7F != 0x7F]
ASCENDING = E4M3_LEVELS[:127]
HALFWAY = (ASCENDING[:-1] + ASCENDING[1:]) / 2
"""Between each two neighbours: five bits, which FP16 and FP32 hold exactly."""


def codes_of(numbers: np.ndarray) -> np.ndarray:
    """Of numbers that FP16 holds."""
    halves = numbers.astype(np.float16)
    np.testing.assert_array_equal(halves.astype(np.float32), numbers)
    return e4m3_codes(halves)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Tells 0 from -0."""
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_each_code_is_the_number_that_pytorch_says() -> None:
    expected = torch.tensor(CODES).view(torch.float8_e4m3fn).float().numpy()

    np.testing.assert_array_equal(E4M3_LEVELS, expected)
    np.testing.assert_array_equal(np.signbit(E4M3_LEVELS[FINITE]), np.signbit(expected[FINITE]))


def test_each_code_comes_back_from_its_number() -> None:
    np.testing.assert_array_equal(codes_of(E4M3_LEVELS[FINITE]), FINITE)


def test_each_number_stays_as_it_is() -> None:
    assert_same_bits(quantise(E4M3_LEVELS[FINITE]), E4M3_LEVELS[FINITE])


def test_each_fp16_number_has_the_code_that_pytorch_gives_it() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.abs(halves.astype(np.float32)) <= E4M3_LARGEST]

    expected = torch.tensor(halves).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    np.testing.assert_array_equal(e4m3_codes(halves), expected)


def test_each_number_becomes_the_nearest_level() -> None:
    numbers = np.random.default_rng(0).normal(0, 1, 20_000).astype(np.float32)
    numbers *= np.exp2(np.random.default_rng(1).uniform(-12, 8, numbers.size)).astype(np.float32)
    levels = np.unique(E4M3_LEVELS[FINITE])
    nearest = levels[np.abs(numbers[:, np.newaxis] - levels).argmin(axis=1)]

    taken = quantise(numbers)

    np.testing.assert_array_equal(np.abs(taken - numbers), np.abs(nearest - numbers))
    assert np.isin(taken, levels).all()


def test_of_two_as_near_the_even_one_is_taken() -> None:
    for sign, first in ((1, 0x00), (-1, 0x80)):
        codes = np.arange(len(HALFWAY)) + first
        even = (codes + codes % 2).astype(np.uint8)

        np.testing.assert_array_equal(codes_of(sign * HALFWAY), even)
        assert_same_bits(quantise(sign * HALFWAY), E4M3_LEVELS[even])


def test_the_least_step_from_halfway_decides() -> None:
    for sign in (np.float32(1), np.float32(-1)):
        below, above = (np.nextafter(HALFWAY, np.float32(end)) for end in (0, np.inf))

        assert_same_bits(quantise(sign * below), sign * ASCENDING[:-1])
        assert_same_bits(quantise(sign * above), sign * ASCENDING[1:])


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_too_large_becomes_the_largest(sign: int) -> None:
    beyond = sign * np.array([449, 464, 480, 65504, 1e30, np.finfo(np.float32).max, np.inf], np.float32)
    halves = sign * np.array([448.25, 464, 480, 65504, np.inf], np.float16)

    assert_same_bits(quantise(beyond), np.full(7, sign * E4M3_LARGEST, np.float32))
    np.testing.assert_array_equal(E4M3_LEVELS[e4m3_codes(halves)], [sign * E4M3_LARGEST] * 5)


def test_numbers_below_the_normal_ones_share_a_step() -> None:
    step = np.float32(2.0**-9)
    eighths = np.arange(-64, 65, dtype=np.float32)
    expected = np.copysign(np.rint(eighths / 8) * step, eighths)

    taken = quantise(eighths * step / 8)

    np.testing.assert_array_equal(taken, expected)
    np.testing.assert_array_equal(E4M3_LEVELS[codes_of(eighths * step / 8)], expected)


def test_what_becomes_zero_keeps_its_sign() -> None:
    tiny = np.array([0.0, 2.0**-10, 1e-7, -0.0, -(2.0**-10), -1e-7], np.float32)
    zeros = np.array([0.0] * 3 + [-0.0] * 3, np.float32)

    assert_same_bits(quantise(tiny), zeros)
    assert_same_bits(quantise(np.array([1e-45, -1e-45], np.float32)), zeros[2:4])
    assert e4m3_codes(tiny.astype(np.float16)).tolist() == [0x00] * 3 + [0x80] * 3


def test_nan_stays_in_fp32_and_has_the_code_of_the_largest() -> None:
    nan = np.array([np.nan, -np.nan], np.float32)

    assert np.isnan(quantise(nan)).all()
    assert e4m3_codes(nan.astype(np.float16)).tolist() == [0x7E, 0xFE]


def test_shapes_stay() -> None:
    for shape in ((), (0,), (3, 1, 2)):
        assert np.shape(quantise(np.ones(shape, np.float32))) == shape
        assert np.shape(e4m3_codes(np.ones(shape, np.float16))) == shape
