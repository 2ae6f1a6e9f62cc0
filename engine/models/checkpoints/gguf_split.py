"""GGUF models in several files, as large ones are published: NAME-00001-of-00003.gguf and so on.

The first has the metadata of the model; each has `split.no`, `split.count` and a part of the tensors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from engine.errors import CheckpointError
from engine.models.checkpoints.gguf_file import GgufFile, read_gguf

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_MOST_PARTS = 1000


def split_stem(stem: str) -> str:
    """The name of a GGUF file less ".gguf" without the number of its part, if it has one."""
    part = _PART.fullmatch(stem)
    return part["stem"] if part else stem


def read_gguf_model(path: Path) -> tuple[GgufFile, list[Path]]:
    """A model of one file or of several, of which `path` is any, and its files in order.

    Raises CheckpointError if a part is missing, or is not one of this model.
    """
    first = _first_part(path)
    file = read_gguf(first)
    count = file.metadata.get("split.count", 1)
    if not isinstance(count, int) or not 0 <= count <= _MOST_PARTS:
        raise CheckpointError(f"{first.name}: split.count is {count!r:.80}; allowed are 1 to {_MOST_PARTS}")
    if count < 2:
        return file, [first]
    parts = [first.with_name(_part_name(first, number, count)) for number in range(1, count + 1)]
    return _joined(file, parts), parts


def _first_part(path: Path) -> Path:
    part = _PART.fullmatch(path.stem)
    return path.with_name(_part_name(path, 1, int(part["count"]))) if part else path


def _part_name(path: Path, number: int, count: int) -> str:
    return f"{split_stem(path.stem)}-{number:05d}-of-{count:05d}.gguf"


def _joined(first: GgufFile, parts: list[Path]) -> GgufFile:
    tensors = dict(first.tensors)
    for number, path in enumerate(parts[1:], 1):
        if not path.exists():
            raise CheckpointError(
                f"{first.path.name} is the first of {len(parts)} files, and {path.name} is not beside it"
            )
        part = read_gguf(path)
        if part.metadata.get("split.no") != number or part.metadata.get("split.count") != len(parts):
            raise CheckpointError(f"{path.name} does not say that it is part {number + 1} of {len(parts)}")
        if twice := tensors.keys() & part.tensors.keys():
            raise CheckpointError(f"{path.name} repeats the tensor {min(twice)!r} of an earlier part")
        tensors |= part.tensors
    return replace(first, tensors=tensors)
