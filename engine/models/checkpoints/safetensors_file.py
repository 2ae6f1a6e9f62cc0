"""The safetensors container: where each tensor of a file, or of a folder of shards, lies.

Layout: the header's length (8 bytes, little endian), the header (JSON: name -> dtype, shape,
data_offsets), the data. The format is read here, and not with its own library, because that one gives
NumPy no bfloat16.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.encodings import Encoding, encoded_bytes
from engine.models.checkpoints.stored import Stored, elements, map_file

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 100_000_000
"""The format's own limit."""
_MAX_INDEX = 64 << 20
_MAX_DIMENSIONS = 8


def read_safetensors(path: Path) -> dict[str, Stored]:
    """Maps one file. Raises CheckpointError if it is not a whole safetensors file."""
    data = map_file(path)
    length = struct.unpack("<Q", data[:8].tobytes())[0] if len(data) >= 8 else 0
    if not 2 <= length <= min(_MAX_HEADER, len(data) - 8):
        raise _damaged(path, f"its header of {length} bytes does not fit in its {len(data)} bytes")
    try:
        header = json.loads(data[8 : 8 + length].tobytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not an object")
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: _stored(path, name, entry, body) for name, entry in header.items()}


def read_folder(folder: Path) -> dict[str, Stored]:
    """Maps every tensor of a Hugging Face folder, in one file or in the shards that its index names.

    Raises CheckpointError if a file is missing or damaged.
    """
    if (folder / INDEX).exists():
        return _read_shards(folder)
    if (folder / SINGLE).exists():
        return read_safetensors(folder / SINGLE)
    raise CheckpointError(
        f"{folder} holds neither {SINGLE} nor {INDEX}: convert the checkpoint to safetensors first"
    )


def weight_files(tensors: Mapping[str, Stored]) -> list[Path]:
    """The files that `tensors` lie in, in order of name."""
    return sorted({t.path for t in tensors.values()})


def _read_shards(folder: Path) -> dict[str, Stored]:
    index = folder / INDEX
    try:
        if index.stat().st_size > _MAX_INDEX:
            raise CheckpointError(f"{index} has {index.stat().st_size} bytes; allowed are {_MAX_INDEX}")
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        wanted = {str(name): str(shard) for name, shard in places.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not a usable index: {error}") from error
    outside = next((s for s in wanted.values() if Path(s).name != s or s in ("", ".", "..")), None)
    if outside is not None:
        raise CheckpointError(f"{index} names the shard {outside!r}; a shard must lie in the same folder")
    shards = {shard: read_safetensors(folder / shard) for shard in sorted(set(wanted.values()))}
    lost = next((name for name, shard in wanted.items() if name not in shards[shard]), None)
    if lost is not None:
        raise CheckpointError(f"{wanted[lost]} lacks tensor {lost!r}, which {INDEX} promises")
    return {name: shards[shard][name] for name, shard in wanted.items()}


def _stored(path: Path, name: str, entry: Any, body: NDArray[np.uint8]) -> Stored:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"the entry of tensor {name!r} is malformed") from error
    numbers = (*shape, start, end)
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in numbers):
        raise _damaged(path, f"the entry of tensor {name!r} is malformed")
    if dtype not in (Encoding.F32, Encoding.F16, Encoding.BF16):
        raise CheckpointError(
            f"{path.name}: tensor {name!r} is of type {dtype!r}; supported are F32, F16 and BF16"
        )
    encoding = Encoding(dtype)
    if not start <= end <= len(body) or end - start != encoded_bytes(encoding, elements(shape)):
        raise _damaged(
            path,
            f"tensor {name!r} of shape {list(shape)} lies at bytes {start} to {end} of {len(body)}:"
            " it is cut short or corrupt",
        )
    return Stored(path, name, encoding, shape, body[start:end])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an entry is listed twice")
    return found


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a usable safetensors file: {problem}")
