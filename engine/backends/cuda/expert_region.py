"""Where experts lie in a GPU's memory, behind the tapes: an address for each, because no order can be known.

An expert is its tiles of gate and up, then those of down, each tile whole: eight packed rows, chunk after
chunk; in a packed format, run after run (units.py). Whoever computes a tile finds it in any expert at the
same offset from that expert's address. What SMs share out is one tall GATE_UP of all experts that a token
meets, and one wide DOWN; which expert stands behind which tile of the one, and which columns of the other,
the router says (kernels/cuda/experts.cuh).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.tape import (
    CHUNK_COLUMNS,
    TILE_ROWS,
    Matrix,
    Plan,
    chunks,
    columns,
    pack_rows,
    part_tiles,
    row_sources,
    swap_pieces,
    tensors,
)
from engine.backends.cuda.units import group_bytes
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from engine.models.weights import DType, Weights, packed_of

EXPERT_MATRICES = (Matrix.GATE_UP, Matrix.DOWN)


@dataclass(frozen=True)
class ExpertRegion:
    """The experts of all layers of a model, or of one GPU's part of it."""

    config: ModelConfig
    gate_up: Storage = Storage.F16
    """Of all experts' gates and ups; F16 stands for any sixteen bits."""
    down: Storage = Storage.F16

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(plan.config, *(plan.storage(0, matrix) for matrix in EXPERT_MATRICES))

    @property
    def one(self) -> ModelConfig:
        """A dense model whose MLP is one expert."""
        return replace(self.config, experts=None)

    @property
    def count(self) -> int:
        """Experts of a layer; 0 for a dense model."""
        return self.config.experts.count if self.config.experts else 0

    def storage(self, matrix: Matrix) -> Storage:
        return self.gate_up if matrix is Matrix.GATE_UP else self.down

    def tile_bytes(self, matrix: Matrix) -> int:
        return group_bytes(self.storage(matrix), 1, chunks(self.one, matrix))

    def matrix_bytes(self, matrix: Matrix) -> int:
        """Of one expert."""
        return part_tiles(self.one, matrix) * self.tile_bytes(matrix)

    @property
    def expert_bytes(self) -> int:
        return sum(self.matrix_bytes(matrix) for matrix in EXPERT_MATRICES)

    @property
    def size(self) -> int:
        """Bytes of all experts of all layers."""
        return self.config.layers * self.count * self.expert_bytes

    @property
    def met_bytes(self) -> int:
        """Of those that one token meets in all layers."""
        chosen = self.config.experts.chosen if self.config.experts else 0
        return self.config.layers * chosen * self.expert_bytes

    def offset(self, layer: int, expert: int, matrix: Matrix) -> int:
        """Bytes from the begin of the region."""
        start = (layer * self.count + expert) * self.expert_bytes
        return start + (self.matrix_bytes(Matrix.GATE_UP) if matrix is Matrix.DOWN else 0)

    def matrices(self) -> Iterator[tuple[int, int, Matrix]]:
        """(layer, expert, matrix) of all, in their order in memory."""
        for layer in range(self.config.layers):
            for expert in range(self.count):
                for matrix in EXPERT_MATRICES:
                    yield layer, expert, matrix

    def sources(self, matrix: Matrix) -> NDArray[np.int32]:
        """`tape.row_sources` of one expert; every expert has the same."""
        return row_sources(self.one, matrix)


def expert_tensors(config: ModelConfig, layer: int, expert: int, matrix: Matrix) -> tuple[str, ...]:
    """The canonical tensors that one expert's matrix is made of."""
    prefix = f"layers.{layer}."
    return tuple(
        f"{prefix}experts.{expert}.{name.removeprefix(prefix)}" for name in tensors(config, layer, matrix)
    )


def pack_experts(region: ExpertRegion, weights: Weights, dtype: DType = "f16") -> NDArray[np.uint8]:
    """The bytes of the region: the definition that kernels' packers are compared with."""
    packed = np.zeros(region.size, np.uint8)
    for layer, expert, matrix in region.matrices():
        names = expert_tensors(region.config, layer, expert, matrix)
        tiles = (
            _packed_tiles(region, weights, names, matrix)
            if region.storage(matrix).is_packed
            else _tiles(region, weights, names, matrix, dtype)
        )
        at = region.offset(layer, expert, matrix)
        packed[at : at + tiles.size] = tiles
    return packed


def _packed_tiles(
    region: ExpertRegion, weights: Weights, names: Sequence[str], matrix: Matrix
) -> NDArray[np.uint8]:
    parts = [packed_of(weights, name) for name in names]
    by_tile = region.sources(matrix).reshape(-1, TILE_ROWS, 2)
    return np.concatenate([pack_rows(parts, wanted) for wanted in by_tile])


def _tiles(
    region: ExpertRegion, weights: Weights, names: Sequence[str], matrix: Matrix, dtype: DType
) -> NDArray[np.uint8]:
    width = columns(region.one, matrix)
    rows = np.stack([weights.get(name, dtype).view(np.uint16).reshape(-1, width) for name in names])
    tiles = part_tiles(region.one, matrix)
    block = np.zeros((tiles * TILE_ROWS, chunks(region.one, matrix) * CHUNK_COLUMNS), np.uint16)
    sources = region.sources(matrix)
    real = sources[:, 0] >= 0
    block[real, :width] = rows[sources[real, 0], sources[real, 1]]
    units = swap_pieces(block.reshape(tiles, TILE_ROWS, -1, CHUNK_COLUMNS).transpose(0, 2, 1, 3))
    return np.ascontiguousarray(units).view(np.uint8).reshape(-1)
