"""How the CPU kernel keeps each matrix: as it ships where it can, else in sixteen bits; and how it is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.cpu.contract import LAYER_MATRICES, MLP_MATRICES, Matrix
from engine.models.config import HeadKind, ModelConfig
from engine.models.storage import FP8_BLOCK_SIDE, Storage
from engine.models.weights import PackedWeights, Weights, storage_of

_PANEL_ROWS = 16
"""Rows that the kernel multiplies with at once: all of one storage."""
_CUT_BY_COLUMNS = (Matrix.WO, Matrix.W_DOWN)
"""What several devices without lanes share by columns; the rest they share by rows."""


@dataclass(frozen=True, slots=True)
class Storages:
    """Of every matrix of a model on so many devices."""

    config: ModelConfig
    shards: int
    layers: tuple[tuple[Storage, ...], ...]
    """[layer][matrix of a layer]"""
    head: Storage
    embed: Storage

    def of(self, matrix: Matrix, layer: int) -> Storage:
        if matrix in LAYER_MATRICES:
            return self.layers[layer][matrix]
        return self.head if matrix is Matrix.HEAD_ROWS else self.embed

    def named(self, name: str) -> Storage | None:
        """Of a matrix by its canonical name; None for a router, which is kept in FP32."""
        *layer, kind = name.split(".")
        if kind == "router":
            return None
        if layer:
            return self.layers[int(layer[1])][Matrix[kind.upper()]]
        return self.embed if kind == "embed" else self.head

    @property
    def all(self) -> list[Storage]:
        """In the order of the kernel's `storages`."""
        return [*(storage for layer in self.layers for storage in layer), self.head, self.embed]

    def cut(self, matrix: Matrix, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """[rows of all lanes, width] in the parts that the kernel takes one by one."""
        if matrix in _CUT_BY_COLUMNS and self.config.lanes.count == 1:
            return np.split(rows, self.shards, axis=1)
        if matrix in LAYER_MATRICES:
            return np.split(rows, self.shards)
        by_lane = matrix is Matrix.HEAD_ROWS and self.config.lanes.head is HeadKind.VOCAB_PARALLEL
        return np.split(rows, self.config.lanes.count if by_lane else 1)


def choose_storages(weights: Weights, devices: int) -> Storages:
    """Packed matrices stay packed unless they have lanes, or a cut between columns goes through a block."""
    config = weights.config
    lanes = config.lanes.count
    half = Storage.BF16 if weights.native == "bf16" else Storage.F16
    columns = {Matrix.WO: config.q_dim, Matrix.W_DOWN: config.ffn}

    def chosen(name: str, matrix: Matrix | None = None) -> Storage:
        found = storage_of(weights, name)
        width = columns.get(matrix, 0) if matrix is not None else 0
        is_cut_through = devices > 1 and width // devices % found.run
        return half if found.is_packed and (lanes > 1 or is_cut_through) else found

    def chosen_of_experts(i: int, matrix: Matrix, count: int) -> Storage:
        """All experts of a layer lie alike: in sixteen bits if they ship in several formats."""
        name = matrix.name.lower()
        found = {chosen(f"layers.{i}.experts.{expert}.{name}", matrix) for expert in range(count)}
        return found.pop() if len(found) == 1 else half

    def layer(i: int) -> tuple[Storage, ...]:
        experts = config.experts
        found = [
            chosen_of_experts(i, matrix, experts.count)
            if experts and matrix in MLP_MATRICES
            else chosen(f"layers.{i}.{matrix.name.lower()}", matrix)
            for matrix in LAYER_MATRICES
        ]
        borders = (config.q_dim // devices, (config.q_dim + config.kv_dim) // devices)
        if len(set(found[:3])) > 1 and any(border % _PANEL_ROWS for border in borders):
            found[:3] = [half] * 3
        return tuple(found)

    embed = chosen("embed")
    head = embed if config.tied_head else chosen("head")
    shards = lanes if lanes > 1 else devices
    return Storages(config, shards, tuple(layer(i) for i in range(config.layers)), head, embed)


def matrix_rows(
    weights: Weights, name: str, storage: Storage
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """A matrix in `storage`: bytes of the rows of all lanes, and scales [rows, columns / 128] of FP8."""
    if storage.is_packed and isinstance(weights, PackedWeights):
        packed = weights.packed(name)
        rows = packed.rows.reshape(-1, packed.rows.shape[-1])
        if packed.scales is None:
            return rows, None
        scales = packed.scales.reshape(-1, packed.scales.shape[-1])
        return rows, np.repeat(scales, FP8_BLOCK_SIDE, axis=0)[: len(rows)]
    values = weights.get(name, "bf16" if storage is Storage.BF16 else "f16")
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, 2 * values.shape[-1]), None
