"""Activations as pairs of FP16: what the kernels' split, run on the CPU, leaves of a number."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.cuda.emulation.halves import EmulatedHalves
from tests.kernels.cuda.test_digits import header_in_mxfp4

LARGEST = 65504.0


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedHalves:
    return EmulatedHalves(tmp_path_factory.mktemp("halves"), header_in_mxfp4())


def test_two_halves_are_a_number_but_for_2_to_the_minus_22_of_it(emulated: EmulatedHalves) -> None:
    numbers = np.random.default_rng(1).standard_normal(256).astype(np.float32) * np.float32(100.0)

    high, low = emulated.split(numbers)

    error = np.abs(high.astype(np.float64) + low.astype(np.float64) - numbers)
    assert (error <= 2.0**-22 * np.abs(numbers)).all()


def test_the_second_half_has_as_much_of_what_is_beyond_fp16_as_it_can_hold(emulated: EmulatedHalves) -> None:
    numbers = np.array([100_000.0, -100_000.0, 2 * LARGEST, 1e30, np.inf, -np.inf], np.float32)

    high, low = emulated.split(numbers)

    rest = 100_000.0 - LARGEST
    assert high.tolist() == [LARGEST, -LARGEST, LARGEST, LARGEST, LARGEST, -LARGEST]
    assert low.tolist() == [rest, -rest, LARGEST, LARGEST, LARGEST, -LARGEST]
