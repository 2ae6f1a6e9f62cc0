"""Numbers in E4M3, the FP8 of keys, values and weights: their codes, and the rule that rounds to them.

A code is a byte: the sign, four bits of exponent (bias 7), three of mantissa. Exponent 0 is that of subnormal
numbers, multiples of 2^-9. There is no infinity; the largest number is 448, and NaN has all bits set but the
sign, which may be either. Source: OCP 8-bit Floating Point Specification, revision 1.0.

A number is rounded to the nearest one, of two as near to the even one; beyond 448 it becomes 448. The kernels
round by the same rule (kernels/cpu/cached_number.h, kernels/cuda/e4m3.cuh).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

E4M3_LARGEST = 448.0
_NAN = 0x7F
"""Without its sign; the codes below it are those of 0 to 448, ascending."""
_LEAST_EXPONENT = -5
"""Of numpy.frexp: numbers below 2^-6 share the step of 2^-9."""


def _levels() -> NDArray[np.float32]:
    bits = np.arange(128)
    exponent, fraction = bits >> 3, bits & 7
    normal = np.ldexp(1.0 + fraction / 8.0, exponent - 7)
    positive = np.where(exponent > 0, normal, np.ldexp(fraction / 8.0, -6))
    positive[_NAN] = np.nan
    return np.concatenate((positive, -positive)).astype(np.float32)


E4M3_LEVELS = _levels()
"""The number of each code: [256]. Indexed with codes of any shape, it gives their numbers, exactly."""


def quantise(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each of `numbers`, of any shape, as the nearest E4M3 number, in FP32.

    Infinity becomes 448 and NaN stays NaN. Signs stay, that of 0 too. Raises nothing.
    """
    within = np.clip(numbers, -E4M3_LARGEST, E4M3_LARGEST)
    _, exponent = np.frexp(within)
    step = np.ldexp(np.float32(1.0), np.maximum(exponent, _LEAST_EXPONENT) - 4)
    nearest: NDArray[np.float32] = np.rint(within / step) * step
    return nearest


@cache
def _codes_of_halves() -> NDArray[np.uint8]:
    """The code of each FP16 number, by its bits: [65536]."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    sizes = np.abs(bits.view(np.float16)).astype(np.float32)
    within = np.fmin(sizes, np.float32(E4M3_LARGEST))  # NaN becomes 448 as well
    codes = np.searchsorted(E4M3_LEVELS[:_NAN], quantise(within))
    return (codes | bits >> 15 << 7).astype(np.uint8)


def e4m3_codes(halves: NDArray[np.float16]) -> NDArray[np.uint8]:
    """The code of the E4M3 number nearest to each of `halves`, of any shape.

    Infinity becomes 448, and so does NaN: refuse it before where one can occur. Signs stay, that of 0 too.
    Raises nothing.
    """
    return _codes_of_halves()[halves.view(np.uint16)]
