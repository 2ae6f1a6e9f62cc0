"""The GGUF container: metadata and where each tensor lies. Knows nothing of models.

Layout (versions 2 and 3, little endian): magic, version, tensor count, metadata count; the metadata as
(name, type, value); the tensors as (name, dimensions innermost first, type, offset); then, aligned, the
data. Every count is checked against the bytes that are left before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.encodings import Encoding, encoded_bytes
from engine.models.checkpoints.stored import Stored, elements, map_file

MAGIC = b"GGUF"
_MAX_TENSORS = 1 << 16
_MAX_METADATA = 1 << 12
_MAX_NAME = 256
"""Four times what the format allows for names of tensors."""
_ENCODINGS = {
    0: Encoding.F32,
    1: Encoding.F16,
    2: Encoding.Q4_0,
    3: Encoding.Q4_1,
    6: Encoding.Q5_0,
    7: Encoding.Q5_1,
    8: Encoding.Q8_0,
    12: Encoding.Q4_K,
    13: Encoding.Q5_K,
    14: Encoding.Q6_K,
    20: Encoding.IQ4_NL,
    30: Encoding.BF16,
    39: Encoding.MXFP4,
}
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class GgufFile:
    """`metadata` holds scalars, strings, lists of strings, and one-dimensional arrays of numbers."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]


def read_gguf(path: Path) -> GgufFile:
    """Reads the header of a GGUF file and maps its data. Raises CheckpointError."""
    data = map_file(path)
    try:
        return _Reader(path, data).file()
    except (struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name} is not a whole GGUF file: {error}") from error


class _Reader:
    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data
        self.view = memoryview(data.data)
        self.at = 0

    def file(self) -> GgufFile:
        if bytes(self.take(4)) != MAGIC:
            raise self.error("it does not start with 'GGUF'")
        version = self.number("<I")
        if version not in (2, 3):
            raise self.error(f"its version is {version}; supported are 2 and 3 (little endian)")
        tensors = self.count(_MAX_TENSORS, 8, "tensors")
        entries = self.count(_MAX_METADATA, 8, "metadata entries")
        metadata = {}
        for _ in range(entries):
            name = self.string(_MAX_NAME)
            metadata[name] = self.value(self.number("<I"), name)
        places = [self.place() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self.error(f"general.alignment is {alignment!r}; it must be a power of two up to 65536")
        start = -(-self.at // alignment) * alignment
        found: dict[str, Stored] = {}
        for name, shape, kind, offset in places:
            if name in found:
                raise self.error(f"tensor {name!r} is listed twice")
            if offset % alignment:
                raise self.error(f"tensor {name!r} lies at {offset}, which is no multiple of {alignment}")
            found[name] = self.stored(name, shape, kind, start + offset)
        return GgufFile(self.path, metadata, found)

    def place(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string(_MAX_NAME)
        dimensions = self.number("<I")
        if not 1 <= dimensions <= 4:
            raise self.error(f"tensor {name!r} has {dimensions} dimensions; allowed are 1 to 4")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        return name, shape, self.number("<I"), self.number("<Q")

    def stored(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Stored:
        if kind not in _ENCODINGS:
            raise self.error(
                f"tensor {name!r} is of GGML type {kind}; supported are {', '.join(_ENCODINGS.values())}"
            )
        encoding = _ENCODINGS[kind]
        try:
            size = encoded_bytes(encoding, elements(shape)) if shape[-1] else 0
            encoded_bytes(encoding, shape[-1])
        except ValueError as error:
            raise self.error(f"tensor {name!r}: {error}") from error
        if size < 1 or offset + size > len(self.data):
            raise self.error(
                f"tensor {name!r} of shape {list(shape)} ends at byte {offset + size}"
                f" of {len(self.data)}: it is cut short or corrupt"
            )
        return Stored(self.path, name, encoding, shape, self.data[offset : offset + size])

    def value(self, kind: int, name: str) -> Any:
        if kind == _STRING:
            return self.string(len(self.data))
        if kind == _ARRAY:
            return self.array(name)
        if kind not in _SCALARS:
            raise self.error(f"metadata {name!r} is of unknown type {kind}")
        value = np.frombuffer(self.take(np.dtype(_SCALARS[kind]).itemsize), _SCALARS[kind])[0].item()
        return bool(value) if kind == _BOOL else value

    def array(self, name: str) -> Any:
        kind = self.number("<I")
        if kind == _STRING:
            count = self.count(len(self.data), 8, f"strings in {name!r}")
            return self.strings(count)
        if kind not in _SCALARS:
            raise self.error(f"metadata {name!r} is an array of type {kind}, which is not supported")
        size = np.dtype(_SCALARS[kind]).itemsize
        count = self.count(len(self.data), size, f"numbers in {name!r}")
        return np.frombuffer(self.take(count * size), _SCALARS[kind])

    def string(self, most: int) -> str:
        length = self.count(most, 1, "bytes in a string")
        return str(self.take(length), "utf-8")

    def strings(self, count: int) -> list[str]:
        """As `string`, so many times: a vocabulary has a hundred thousand, at each start of a worker."""
        view, at, end, length_at = self.view, self.at, len(self.data), struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            size = length_at(view, at)[0] if at + 8 <= end else end
            if size > end - at - 8:
                self.at = at
                self.string(end)  # says what is wrong
            found.append(str(view[at + 8 : at + 8 + size], "utf-8"))
            at += 8 + size
        self.at = at
        return found

    def count(self, most: int, size: int, what: str) -> int:
        """A count of things of at least `size` bytes, which the rest of the file must be able to hold."""
        count = int(self.number("<Q"))
        left = len(self.data) - self.at
        if count > most or count * size > left:
            raise self.error(
                f"it announces {count} {what} with {left} bytes left: it is cut short or corrupt"
            )
        return count

    def number(self, form: str) -> int:
        value = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        assert isinstance(value, int)  # noqa: S101 - all forms used here are integers
        return value

    def take(self, size: int) -> memoryview:
        if self.at + size > len(self.data):
            raise self.error(f"it ends at byte {len(self.data)}, inside its header: it is cut short")
        part = self.view[self.at : self.at + size]
        self.at += size
        return part

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path.name} is not a usable GGUF file: {problem}")
