"""Tensors where they lie in a file, and the weights made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.encodings import Encoding, decode, native_type
from engine.models.config import ModelConfig
from engine.models.weights import DType, tensor_shapes


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a mapped file. `data` is a view: nothing is read before `read`."""

    path: Path
    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def read(self, dtype: DType) -> NDArray[Any]:
        """The tensor in `dtype`, in the file's own shape. Raises CheckpointError if it is damaged."""
        what = f"{self.path.name}: tensor {self.name!r}"
        return decode(self.data, self.encoding, dtype, what).reshape(self.shape)


class StoredWeights:
    """Weights (the protocol in engine.models.weights) over mapped files, by canonical name.

    Matrices keep the type of the file; a mixture of types is kept as float32.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Stored]) -> None:
        """Raises CheckpointError if a tensor is missing, misshapen, or of no use to this model."""
        self.config = config
        self._shapes = dict(tensor_shapes(config))
        self._tensors = dict(tensors)
        _check(config, self._shapes, self._tensors)
        kinds = {native_type(t.encoding) for t in self._tensors.values() if len(t.shape) > 1}
        self.native: DType = kinds.pop() if len(kinds) == 1 else "f32"

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        if name not in self._tensors:
            raise CheckpointError(f"model {self.config.name!r} has no tensor {name!r}")
        return self._tensors[name].read(dtype).reshape(self._shapes[name])


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


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, read only as they are used. Raises CheckpointError."""
    try:
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def elements(shape: tuple[int, ...]) -> int:
    """How many numbers a tensor of `shape` holds."""
    return math.prod(shape)
