"""Activations as digits (kernels/cuda/digits.cuh), split by one warp on the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.kernels.cuda.emulation.build import load_part
from tests.kernels.cuda.emulation.sources import write_headers

_SOURCE = """#define THREADS_OF_A_BLOCK 32
#include "emulation.h"
#include "digits.cuh"
static const float4* numbers;
static unsigned char (*columns)[64];
static float* sizes;
static int count;
static void split_by_a_lane() {
    constexpr int PIECES = 3;  // two share a word, and one has its own
    for (int first = int(threadIdx.x); first < count; first += PIECES * 32) {
        float4 values[PIECES];
        u32 powers[PIECES];
        for (int k = 0; k < PIECES; ++k) values[k] = numbers[smaller(first + k * 32, count - 1)];
        packed::powers_of_chunks(values, powers);
        for (int k = 0, i = first; k < PIECES && i < count; ++k, i += 32) {
            const packed::Digits digits(values[k], powers[k]);
            digits.store(columns[i], u32(i) % 4);
            sizes[i] = digits.size;
        }
    }
    emulation::current->ended = true;
    emulation::wait();
}
extern "C" int split(const float4* of, unsigned char (*to)[64], float* sizes_to, int fours) {
    numbers = of, columns = to, sizes = sizes_to, count = fours;
    return emulation::run(1, 1, 32, split_by_a_lane);
}
extern "C" float of_digits() { return packed::of_digits(); }
"""


class EmulatedDigits:
    """Raises FileNotFoundError if there is no C++ compiler."""

    def __init__(self, folder: Path, header: str) -> None:
        """`header`: model.h, of any model whose weights are multiplied so."""
        write_headers(folder, header)
        self._library = load_part(folder, "digits", _SOURCE)
        self._library.of_digits.restype = ctypes.c_float

    @property
    def of_digits(self) -> float:
        return float(self._library.of_digits())

    def split(self, numbers: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Of chunks [a multiple of 4, 32] the digits [chunks, 32, 4] as bytes, and a size for each number."""
        fours = numbers.size // 4
        handed = np.zeros(numbers.size + 4, np.float32)  # a vector of four is aligned to its 16 bytes
        first = -handed.ctypes.data % 16 // 4
        handed[first : first + numbers.size] = numbers.ravel()
        columns = np.full((fours, 4, 16), 0xFF, np.uint8)
        sizes = np.zeros(fours, np.float32)
        pointers = (ctypes.c_void_p(address) for address in (
            handed[first:].ctypes.data, columns.ctypes.data, sizes.ctypes.data,
        ))  # fmt: skip
        assert self._library.split(*pointers, fours)
        digits = columns[:, :, :4].transpose(0, 2, 1).reshape(*numbers.shape, 4)
        return digits, np.repeat(sizes, 4).reshape(numbers.shape)
