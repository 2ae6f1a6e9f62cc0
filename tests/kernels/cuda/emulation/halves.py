"""Numbers as pairs of FP16 (kernels/cuda/mma.cuh), split on the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.kernels.cuda.emulation.build import load_part
from tests.kernels.cuda.emulation.sources import write_headers

_SOURCE = """#define THREADS_OF_A_BLOCK 32
#include "emulation.h"
#include "mma.cuh"
extern "C" void split(const float* pairs, u32* high, u32* low, int count) {
    for (int i = 0; i < count; ++i) {
        const Split parts = split_f16(pairs[2 * i], pairs[2 * i + 1]);
        high[i] = parts.high, low[i] = parts.low;
    }
}
"""


class EmulatedHalves:
    """Raises FileNotFoundError if there is no C++ compiler."""

    def __init__(self, folder: Path, header: str) -> None:
        """`header`: model.h, of any model."""
        write_headers(folder, header)
        self._library = load_part(folder, "halves", _SOURCE)

    def split(self, numbers: NDArray[np.float32]) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """The first and the second part of an even count of numbers."""
        parts = np.zeros((2, numbers.size), np.float16)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (numbers, parts[0], parts[1]))
        self._library.split(*pointers, numbers.size // 2)
        return parts[0], parts[1]
