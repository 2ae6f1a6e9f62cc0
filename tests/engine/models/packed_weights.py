"""Random models in packed formats, made for the tests."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.models.checkpoints.block_formats import BLOCK_FORMATS
from engine.models.checkpoints.encodings import Encoding, decode, decode_scaled
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.storage import FP8_BLOCK_SIDE, Packed, Storage
from engine.models.weights import DType, RandomWeights, cast_tensor

_SPREAD = {
    Storage.Q8_0: 73.9,
    Storage.Q5_0: 9.24,
    Storage.Q4_K: 148.0,
    Storage.Q6_K: 1366.0,
    Storage.FP8_BLOCK: 120.0,
    Storage.MXFP4: 4.92,
    Storage.Q4_1: 5.4,
}
"""Standard deviation of random bits in each format, the scales at 1."""
_OFFSET = {Storage.Q4_K: 7.5, Storage.Q4_1: -7.5}
"""Moves the mean of random codes to 0: subtracted in Q4_K, added in Q4_1."""


def random_packed(storage: Storage, rows: int, columns: int, spread: float, seed: int) -> Packed:
    """Every bit random but for the scales, which vary by a factor of two and give the standard deviation."""
    rng = np.random.default_rng(seed)
    size = spread / _SPREAD[storage]
    if storage is Storage.FP8_BLOCK:
        numbers = rng.integers(0, 256, (rows, columns), np.uint8)
        numbers[numbers & 0x7F == 0x7F] = 0x38
        shape = (-(-rows // FP8_BLOCK_SIDE), -(-columns // FP8_BLOCK_SIDE))
        return Packed(storage, numbers, (size * rng.uniform(0.7, 1.4, shape)).astype(np.float32))
    form = BLOCK_FORMATS[storage.name]
    blocks = rng.integers(0, 256, (rows * columns // form.elements, form.size), np.uint8)
    if storage is Storage.MXFP4:
        blocks[:, 0] = 128 + round(np.log2(size)) + rng.integers(-1, 2, len(blocks))
    for number, at in enumerate(form.scales_at):
        scale = size * rng.uniform(0.7, 1.4, len(blocks)) * (_OFFSET[storage] if number else 1.0)
        blocks[:, at : at + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    return Packed(storage, blocks.reshape(rows, -1))


def unpack(packed: Packed) -> NDArray[np.float32]:
    """The numbers of a matrix, by the decoders of files."""
    if packed.scales is not None:
        return decode_scaled(packed.rows, packed.scales, "f32", "t").reshape(packed.rows.shape)
    values = decode(packed.rows.reshape(-1), Encoding[packed.storage.name], "f32", "t")
    return values.reshape(len(packed.rows), -1)


class RandomPacked:
    """Implements engine.models.weights.PackedWeights; `choose` gives each matrix its storage."""

    def __init__(self, config: ModelConfig, choose: Callable[[str], Storage], seed: int = 0) -> None:
        self.config = config
        self.native: DType = "f16"
        self._plain = RandomWeights(config, seed)
        shapes = {name: shape for name, shape in tensor_shapes(config) if len(shape) > 1}
        wanted = {name: choose(name) for name in shapes if not name.rsplit(".", 1)[-1].startswith("b")}
        self._packed: Mapping[str, Packed] = {
            name: _matrix(self._plain, name, shapes[name], storage, seed)
            for name, storage in wanted.items()
            if storage.is_packed
        }

    def storage(self, name: str) -> Storage:
        return self._packed[name].storage if name in self._packed else Storage.F16

    def packed(self, name: str) -> Packed:
        return self._packed[name]

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        if name not in self._packed:
            return self._plain.get(name, dtype)
        packed = self._packed[name]
        scales = None if packed.scales is None else packed.scales.reshape(-1, packed.scales.shape[-1])
        flat = Packed(packed.storage, packed.rows.reshape(-1, packed.rows.shape[-1]), scales)
        return cast_tensor(unpack(flat).reshape(*packed.rows.shape[:-1], -1), dtype)


def _matrix(plain: RandomWeights, name: str, shape: tuple[int, ...], storage: Storage, seed: int) -> Packed:
    _, scale, _ = plain.recipe(name)
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    made = random_packed(storage, rows, columns, scale / 3**0.5, zlib.crc32(f"{seed}:{name}".encode()))
    scales = made.scales
    if scales is not None:
        scales = scales.reshape(*shape[:-2], -1, scales.shape[-1])
    return Packed(storage, made.rows.reshape(*shape[:-1], -1), scales)


def all_in(storage: Storage) -> Callable[[str], Storage]:
    return lambda _name: storage
