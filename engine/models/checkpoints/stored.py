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
from engine.models.checkpoints.block_formats import MXFP4_BLOCK, fp4_codes, mxfp4_blocks
from engine.models.checkpoints.encodings import (
    Encoding,
    check_packed,
    decode,
    decode_scaled,
    encoded_bytes,
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
    step: int = 1
    """Every so-manyeth of `rows`, where the file deals the rows of several matrices in turn."""
    expert: int | None = None
    """Which matrix along the first axis, where the file stacks those of all experts."""
    transposed: bool = False
    """The file has a column where the canonical tensor has a row; `rows` are counted after the turn."""
    otherwise: Place | None = None
    """Where it lies in files that have no tensor `name`."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a mapped file, or some of its rows.

    `data` is a view of its bytes: nothing is read before `read`. It is flat, or its first axis are rows.
    """

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
    """Of FP8: a number for each block of FP8_BLOCK_SIDE rows and columns. Of FP4: a byte for each block."""

    def read(self, dtype: DType) -> NDArray[Any]:
        """The tensor in `dtype`, in the file's own shape. Raises CheckpointError if it is damaged."""
        what = f"{self.path.name}: tensor {self.name!r}"
        data, encoding = self._flat()
        if self.offset:
            values = decode(data, encoding, "f32", what) + np.float32(self.offset)
            return cast_tensor(values, dtype).reshape(self.shape)
        if self.scales is not None and self.encoding is not Encoding.FP4:
            matrix = data.reshape(self.shape)
            return decode_scaled(matrix, self.scales.read("f32"), dtype, what).reshape(self.shape)
        stored = decode(data, encoding, dtype, what).reshape(self.shape)
        if not self.order:
            return stored
        heads = stored.reshape(-1, len(self.order), self.shape[-1])
        return heads[:, np.array(self.order)].reshape(self.shape)

    def _flat(self) -> tuple[NDArray[np.uint8], Encoding]:
        """The bytes one after the other, and what they are; FP4 becomes GGUF's MXFP4."""
        data = np.ascontiguousarray(self.data).reshape(-1)
        if self.encoding is not Encoding.FP4 or self.scales is None:
            return data, self.encoding
        exponents, _ = self.scales._flat()
        codes = fp4_codes(data.reshape(len(exponents), -1))
        return mxfp4_blocks(codes, exponents).reshape(-1), Encoding.MXFP4

    @property
    def storage(self) -> Storage:
        """How the matrix may be kept. Blocks of 128 rows do not survive another order of the rows."""
        found = storage_of(self.encoding)
        is_turned = found is Storage.FP8_BLOCK and (self.order or self.scales is None)
        return Storage.BF16 if is_turned else found

    def packed(self) -> Packed:
        """The matrix as it ships, [rows, bytes]. Raises CheckpointError if it is damaged."""
        data, encoding = self._flat()
        check_packed(data, encoding, f"{self.path.name}: tensor {self.name!r}")
        rows = data.reshape(self.shape[-2], -1)
        if self.order:
            heads = rows.reshape(-1, len(self.order), rows.shape[-1])
            rows = heads[:, np.array(self.order)].reshape(rows.shape)
        scales = self.scales if self.storage is Storage.FP8_BLOCK else None
        return Packed(self.storage, rows, None if scales is None else scales.read("f32"))

    def with_scales(self, scales: Stored) -> Stored:
        """This FP8 matrix, or these bytes of FP4 blocks, with their scales.

        Raises CheckpointError if they do not fit.
        """
        if self.encoding is Encoding.U8:
            return self._with_exponents(scales)
        expected = tuple(-(-size // FP8_BLOCK_SIDE) for size in self.shape)
        if self.encoding is not Encoding.F8_E4M3 or len(expected) != 2 or scales.shape != expected:
            raise CheckpointError(
                f"{self.path.name}: tensor {self.name!r} is {self.encoding} of shape {list(self.shape)} with"
                f" scales of shape {list(scales.shape)}; supported are F8_E4M3 matrices with one scale for"
                f" each block of {FP8_BLOCK_SIDE} x {FP8_BLOCK_SIDE}"
            )
        return replace(self, scales=scales)

    def _with_exponents(self, scales: Stored) -> Stored:
        """Bytes [..., blocks, 16] as FP4 numbers [..., blocks * 32]."""
        *front, blocks, size = self.shape if len(self.shape) > 1 else (0, 0)
        fits = size * 2 == MXFP4_BLOCK and scales.shape == (*front, blocks) and scales.encoding is Encoding.U8
        if not fits:
            raise CheckpointError(
                f"{self.path.name}: tensor {self.name!r} has shape {list(self.shape)} and scales of shape"
                f" {list(scales.shape)}; FP4 blocks are {MXFP4_BLOCK // 2} bytes with a scale of one byte"
            )
        numbers = (*front, blocks * MXFP4_BLOCK)
        return replace(self, encoding=Encoding.FP4, shape=numbers, scales=scales)

    def at(self, place: Place) -> Stored:
        """The part of this tensor that `place` speaks of. Raises CheckpointError if it is too short."""
        part = self
        if place.expert is not None:
            part = part._of_expert(place.expert)
        if place.transposed:
            part = part._turned()
        if place.rows is not None:
            part = part._rows(slice(*place.rows, place.step))
        return replace(part, offset=place.offset, order=place.order)

    def _of_expert(self, expert: int) -> Stored:
        """The matrix or vector `expert` along the first axis."""
        if len(self.shape) not in (2, 3) or expert >= self.shape[0]:
            raise CheckpointError(
                f"{self.path.name}: tensor {self.name!r} has shape {list(self.shape)}, its configuration"
                f" asks for at least {expert + 1} experts"
            )
        size = len(self.data) // self.shape[0]
        scales = None if self.scales is None else self.scales._of_expert(expert)
        data = self.data[expert * size : (expert + 1) * size]
        return replace(self, shape=self.shape[1:], data=data, scales=scales)

    def _turned(self) -> Stored:
        """The matrix with rows for columns; only of numbers that stand alone."""
        if len(self.shape) != 2 or self.scales is not None:
            raise CheckpointError(f"{self.path.name}: tensor {self.name!r} is no plain matrix, as it must be")
        numbers = self.data.reshape(*self.shape, encoded_bytes(self.encoding, 1))
        return replace(self, shape=self.shape[::-1], data=numbers.swapaxes(0, 1))

    def _rows(self, rows: slice) -> Stored:
        if self.scales is not None and self.encoding is not Encoding.FP4:
            raise CheckpointError(f"{self.path.name}: tensor {self.name!r} is FP8 and holds several matrices")
        if len(self.shape) not in (1, 2) or rows.stop > self.shape[0]:
            raise CheckpointError(
                f"{self.path.name}: tensor {self.name!r} has shape {list(self.shape)}, its configuration"
                f" asks for a matrix of at least {rows.stop} rows"
            )
        by_row = self.data.reshape(self.shape[0], -1) if self.data.ndim == 1 else self.data
        data = by_row[rows]
        scales = None if self.scales is None else self.scales._rows(rows)
        return replace(self, shape=(len(data), *self.shape[1:]), data=data, scales=scales)


class StoredWeights:
    """Weights (the protocol in engine.models.weights) over mapped files, by canonical name.

    Matrices keep the type of the file. `native` is that of those that are not packed; a mixture of types is
    float32. Routers and experts do not count: they have types of their own, whatever the rest has.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Stored]) -> None:
        """Raises CheckpointError if a tensor is missing, misshapen, or of no use to this model."""
        self.config = config
        self._shapes = dict(tensor_shapes(config))
        self._tensors = dict(tensors)
        _check(config, self._shapes, self._tensors)
        matrices = [t for name, t in self._tensors.items() if _decides_type(name, t)]
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
        found, shape = self._tensors[name].packed(), self._shapes[name]
        scales = found.scales
        if scales is not None:
            scales = scales.reshape(*shape[:-2], -1, scales.shape[-1])
        return replace(found, rows=found.rows.reshape(*shape[:-1], -1), scales=scales)


def _decides_type(name: str, tensor: Stored) -> bool:
    return len(tensor.shape) > 1 and ".experts." not in name and not name.endswith(".router")


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
    found = {ours: _present(place, stored) for ours, place in places.items()}
    unknown = {name for name in set(stored) - {place.name for place in found.values()} if not spare(name)}
    if unknown:
        raise CheckpointError(
            f"{source} holds {len(unknown)} tensors that its configuration has no place for, such as"
            f" {min(unknown)!r} (biases, experts or extra norms): such a variant is not supported"
        )
    return {ours: stored[place.name].at(place) for ours, place in found.items() if place.name in stored}


def _present(place: Place, stored: Mapping[str, Stored]) -> Place:
    """`place`, or the one that it names for files without its tensor."""
    return place if place.name in stored or place.otherwise is None else place.otherwise


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, read only as they are used. Raises CheckpointError."""
    try:
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def elements(shape: tuple[int, ...]) -> int:
    """How many numbers a tensor of `shape` holds."""
    return math.prod(shape)
