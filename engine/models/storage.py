"""How the numbers of a matrix lie in memory where a kernel multiplies with them, for every backend.

Sixteen bits, or one of the packed formats that models ship in. A packed matrix is kept as it ships and is
unpacked in registers; nothing of it is rounded. Other formats of files are decoded to sixteen bits as they
are read (engine.models.checkpoints.encodings).

    FP8_BLOCK   8 bits      E4M3, one FP32 scale for each 128 x 128 numbers
    Q8_0        8.5 bits    rows in GGUF blocks (engine.models.checkpoints.block_formats), as are those below
    Q5_0        5.5 bits    what files called Q4_K_M hold for rows that are no multiple of 256
    Q4_K        4.5 bits
    Q6_K        6.5625 bits what files called Q4_K_M hold for the more sensitive half
    MXFP4       4.25 bits   E2M1, one exponent (E8M0) for each 32 numbers
    Q4_1        5 bits
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from engine.e4m3 import E4M3_LEVELS
from engine.models.checkpoints.block_formats import BLOCK_FORMATS

FP8_BLOCK_SIDE = 128
"""Rows and columns of an FP8 matrix that share one scale."""


class Storage(IntEnum):
    """The format of a matrix in memory. Kernels know it under the same numbers."""

    F16 = 0
    BF16 = 1
    FP8_BLOCK = 2
    Q8_0 = 3
    Q5_0 = 4
    Q4_K = 5
    Q6_K = 6
    MXFP4 = 7
    Q4_1 = 8

    @property
    def is_packed(self) -> bool:
        return self not in (Storage.F16, Storage.BF16)

    @property
    def run(self) -> int:
        """Numbers of a row that lie together: a matrix can be cut between columns only at their multiples."""
        if not self.is_packed:
            return 1
        return FP8_BLOCK_SIDE if self is Storage.FP8_BLOCK else BLOCK_FORMATS[self.name].elements


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix as it ships.

    `rows` are the bytes of each row, [..., rows, bytes]: blocks in GGUF's layout, or E4M3 numbers. `scales`
    are those of FP8_BLOCK, [..., rows / 128, columns / 128] rounded up, None for the others.
    """

    storage: Storage
    rows: NDArray[np.uint8]
    scales: NDArray[np.float32] | None = None

    @property
    def columns(self) -> int:
        size = int(self.rows.shape[-1])
        if self.storage is Storage.FP8_BLOCK:
            return size
        form = BLOCK_FORMATS[self.storage.name]
        return size // form.size * form.elements

    @property
    def blocks(self) -> NDArray[np.uint8]:
        """The rows by their blocks, [..., rows, blocks, bytes]; of FP8 a number each."""
        size = 1 if self.storage is Storage.FP8_BLOCK else BLOCK_FORMATS[self.storage.name].size
        return self.rows.reshape(*self.rows.shape[:-1], -1, size)

    def values(self) -> NDArray[np.float32]:
        """The numbers: [..., rows, columns]."""
        if self.scales is None:
            form = BLOCK_FORMATS[self.storage.name]
            return form.decode(self.rows.reshape(-1, form.size)).reshape(*self.rows.shape[:-1], -1)
        count, columns = self.rows.shape[-2:]
        scales = np.repeat(np.repeat(self.scales, FP8_BLOCK_SIDE, axis=-2), FP8_BLOCK_SIDE, axis=-1)
        return E4M3_LEVELS[self.rows] * scales[..., :count, :columns]

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + (0 if self.scales is None else self.scales.nbytes)


def matrix_bytes(storage: Storage, rows: int, columns: int) -> int:
    """Bytes of a matrix in memory, scales included."""
    match storage:
        case Storage.F16 | Storage.BF16:
            return 2 * rows * columns
        case Storage.FP8_BLOCK:
            return rows * columns + 4 * -(-rows // FP8_BLOCK_SIDE) * -(-columns // FP8_BLOCK_SIDE)
        case _:
            form = BLOCK_FORMATS[storage.name]
            return rows * columns // form.elements * form.size
