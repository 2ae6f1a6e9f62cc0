"""Tensors where they lie in a file, and the weights made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.encodings import (
    Encoding,
    check_packed,
    decode,
    decode_scaled,
    native_type,
    storage_of,
)
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.storage import FP8_BLOCK_SIDE, Packed, Storage
from engine.models.weights import DType, cast_tensor


@dataclass(frozen=True, slots=True)
class Place:
    """Where a canonical tensor lies in a family's files: a tensor's name, or some of its rows."""

    name: str
    rows: tuple[int, int] | None = None
    """The first row and the one after the last, where several matrices are stored as one."""
    offset: float = 0.0
    """What the file leaves out of each number."""
    order: tuple[int, ...] = ()
    """The rows of each head in canonical order, where the file has another: row j is the file's order[j]."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a mapped file. `data` is a view: nothing is read before `read`."""

    path: Path
    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    offset: float = 0.0
    """Added to each number as it is read."""
    order: tuple[int, ...] = ()
    """As in Place."""
    scales: Stored | None = None
    """Of an FP8 matrix: one number for each block of FP8_BLOCK_SIDE rows and columns."""

    def read(self, dtype: DType) -> NDArray[Any]:
        """The tensor in `dtype`, in the file's own shape. Raises CheckpointError if it is damaged."""
        what = f"{self.path.name}: tensor {self.name!r}"
        if self.offset:
            values = decode(self.data, self.encoding, "f32", what) + np.float32(self.offset)
            return cast_tensor(values, dtype).reshape(self.shape)
        if self.scales is not None:
            matrix = self.data.reshape(self.shape)
            return decode_scaled(matrix, self.scales.read("f32"), dtype, what).reshape(self.shape)
        stored = decode(self.data, self.encoding, dtype, what).reshape(self.shape)
        if not self.order:
            return stored
        heads = stored.reshape(-1, len(self.order), self.shape[-1])
        return heads[:, np.array(self.order)].reshape(self.shape)

    @property
    def storage(self) -> Storage:
        """How the matrix may be kept. Blocks of 128 rows do not survive another order of the rows."""
        found = storage_of(self.encoding)
        is_turned = found is Storage.FP8_BLOCK and (self.order or self.scales is None)
        return Storage.BF16 if is_turned else found

    def packed(self) -> Packed:
        """The matrix as it ships, [rows, bytes]. Raises CheckpointError if it is damaged."""
        what = f"{self.path.name}: tensor {self.name!r}"
        check_packed(self.data, self.encoding, what)
        rows = self.data.reshape(self.shape[-2], -1)
        if self.order:
            heads = rows.reshape(-1, len(self.order), rows.shape[-1])
            rows = heads[:, np.array(self.order)].reshape(rows.shape)
        return Packed(self.storage, rows, None if self.scales is None else self.scales.read("f32"))

    def with_scales(self, scales: Stored) -> Stored:
        """This FP8 matrix with the scales of its blocks. Raises CheckpointError if they do not fit it."""
        expected = tuple(-(-size // FP8_BLOCK_SIDE) for size in self.shape)
        if self.encoding is not Encoding.F8_E4M3 or len(expected) != 2 or scales.shape != expected:
            raise CheckpointError(
                f"{self.path.name}: tensor {self.name!r} is {self.encoding} of shape {list(self.shape)} with"
                f" scales of shape {list(scales.shape)}; supported are F8_E4M3 matrices with one scale for"
                f" each block of {FP8_BLOCK_SIDE} x {FP8_BLOCK_SIDE}"
            )
        return replace(self, scales=scales)

    def at(self, place: Place) -> Stored:
        """The part of this tensor that `place` speaks of. Raises CheckpointError if it is too short."""
        if place.rows is None:
            return replace(self, offset=place.offset, order=place.order)
        first, end = place.rows
        if self.scales is not None:
            raise CheckpointError(f"{self.path.name}: tensor {self.name!r} is FP8 and holds several matrices")
        if len(self.shape) != 2 or end > self.shape[0]:
            raise CheckpointError(
                f"{self.path.name}: tensor {self.name!r} has shape {list(self.shape)}, its configuration"
                f" asks for a matrix of at least {end} rows"
            )
        size = len(self.data) // self.shape[0]
        shape = (end - first, self.shape[1])
        data = self.data[first * size : end * size]
        return replace(self, shape=shape, data=data, offset=place.offset, order=place.order)


class StoredWeights:
    """Weights (the protocol in engine.models.weights) over mapped files, by canonical name.

    Matrices keep the type of the file. `native` is that of those that are not packed; a mixture of types is
    float32.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Stored]) -> None:
        """Raises CheckpointError if a tensor is missing, misshapen, or of no use to this model."""
        self.config = config
        self._shapes = dict(tensor_shapes(config))
        self._tensors = dict(tensors)
        _check(config, self._shapes, self._tensors)
        matrices = [tensor for tensor in self._tensors.values() if len(tensor.shape) > 1]
        plain = [tensor for tensor in matrices if not tensor.storage.is_packed]
        kinds = {native_type(tensor.encoding) for tensor in plain or matrices}
        self.native: DType = kinds.pop() if len(kinds) == 1 else "f32"

    @property
    def is_decoded(self) -> bool:
        """Whether `get` computes what it returns for a matrix of type `native`."""
        matrices = [tensor for tensor in self._tensors.values() if len(tensor.shape) > 1]
        return any(tensor.encoding.value != self.native.upper() for tensor in matrices)

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        if name not in self._tensors:
            raise CheckpointError(f"model {self.config.name!r} has no tensor {name!r}")
        return self._tensors[name].read(dtype).reshape(self._shapes[name])

    def storage(self, name: str) -> Storage:
        return self._tensors[name].storage

    def packed(self, name: str) -> Packed:
        found = self._tensors[name].packed()
        return replace(found, rows=found.rows.reshape(*self._shapes[name][:-1], -1))


def _check(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Stored]) -> None:
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise CheckpointError(
            f"the checkpoint of {config.name!r} lacks {len(missing)} of {len(shapes)} tensors,"
            f" first {missing[0]!r}: it is incomplete or of another architecture"
        )
    for name, expected in shapes.items():
        found = tensors[name]
        if not _fits(found.shape, expected):
            raise CheckpointError(
                f"{found.path.name}: tensor {found.name!r} has shape {list(found.shape)},"
                f" the configuration of {config.name!r} asks for {list(expected)}"
            )


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Equal but for a missing lane axis of one, or (a head cut by vocabulary) the lanes' rows in order."""
    if found == expected or (expected[0] == 1 and found == expected[1:]):
        return True
    return len(found) == 3 and len(expected) == 2 and (found[0] * found[1], found[2]) == expected


def place_tensors(
    places: Mapping[str, Place], stored: Mapping[str, Stored], spare: Callable[[str], bool], source: str
) -> dict[str, Stored]:
    """The canonical tensors that a checkpoint holds, by name.

    `spare` says which names are of no use and may be there. Raises CheckpointError for any other tensor
    that the model has no place for.
    """
    unknown = set(stored) - {place.name for place in places.values()}
    unknown = {name for name in unknown if not spare(name)}
    if unknown:
        raise CheckpointError(
            f"{source} holds {len(unknown)} tensors that its configuration has no place for, such as"
            f" {min(unknown)!r} (biases, experts or extra norms): such a variant is not supported"
        )
    return {ours: stored[place.name].at(place) for ours, place in places.items() if place.name in stored}


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, read only as they are used. Raises CheckpointError."""
    try:
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def elements(shape: tuple[int, ...]) -> int:
    """How many numbers a tensor of `shape` holds."""
    return math.prod(shape)
