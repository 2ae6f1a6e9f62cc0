"""The safetensors container: where each tensor of a file, or of a folder of shards, lies.

Layout: the header's length (8 bytes, little endian), the header (JSON: name -> dtype, shape,
data_offsets), the data. The format is read here, and not with its own library, because that one gives
NumPy no bfloat16.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.encodings import Encoding, encoded_bytes
from engine.models.checkpoints.json_file import parse_object, read_object
from engine.models.checkpoints.stored import Stored, elements, map_file

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_ENCODINGS = (Encoding.F32, Encoding.F16, Encoding.BF16, Encoding.F8_E4M3, Encoding.U8)
_SCALES = "_scale_inv"
"""What follows the name of an FP8 matrix in the name of its scales."""
_FP4_BLOCKS, _FP4_SCALES = "_blocks", "_scales"
"""How the names of FP4 numbers and of their scales end."""
_SHOWN = 100
"""Characters of a name that a message shows."""
_MAX_DIMENSIONS = 8


def read_safetensors(path: Path) -> dict[str, Stored]:
    """Maps one file. Raises CheckpointError if it is not a whole safetensors file."""
    data = map_file(path)
    length = struct.unpack("<Q", data[:8].tobytes())[0] if len(data) >= 8 else 0
    if not 2 <= length <= len(data) - 8:
        raise _damage_error(path, f"its header of {length} bytes does not fit in its {len(data)} bytes")
    try:
        header = parse_object(data[8 : 8 + length].tobytes())
    except ValueError as error:
        raise _damage_error(path, f"its header is not usable JSON ({error})") from error
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: _stored(path, name, entry, body) for name, entry in header.items()}


def read_folder(folder: Path) -> dict[str, Stored]:
    """Maps every tensor of a Hugging Face folder, in one file or in the shards that its index names.

    Raises CheckpointError if a file is missing or damaged.
    """
    if (folder / INDEX).exists():
        return _with_scales(_read_shards(folder))
    if (folder / SINGLE).exists():
        return _with_scales(read_safetensors(folder / SINGLE))
    raise CheckpointError(
        f"{folder} holds neither {SINGLE} nor {INDEX}: convert the checkpoint to safetensors first"
    )


def _with_scales(tensors: dict[str, Stored]) -> dict[str, Stored]:
    """FP8 matrices and FP4 blocks together with their scales, which are tensors of their own."""
    scales = {name: _scales_of(name) for name in tensors if _scales_of(name) in tensors}
    used = set(scales.values())
    rest = {name: tensor for name, tensor in tensors.items() if name not in used}
    return rest | {name: tensors[name].with_scales(tensors[theirs]) for name, theirs in scales.items()}


def _scales_of(name: str) -> str:
    """What the scales of the tensor `name` are called, if it has any."""
    if name.endswith(_FP4_BLOCKS):
        return name.removesuffix(_FP4_BLOCKS) + _FP4_SCALES
    return name + _SCALES


def weight_files(tensors: Mapping[str, Stored]) -> list[Path]:
    """The files that `tensors` lie in, in order of name."""
    return sorted({t.path for t in tensors.values()})


def shard_names(index: Path) -> set[str]:
    """The files that an index names. Raises CheckpointError if it is not usable."""
    return set(_read_index(index).values())


def _read_shards(folder: Path) -> dict[str, Stored]:
    wanted = _read_index(folder / INDEX)
    shards = {shard: read_safetensors(folder / shard) for shard in sorted(set(wanted.values()))}
    lost = next((name for name, shard in wanted.items() if name not in shards[shard]), None)
    if lost is not None:
        raise CheckpointError(f"{wanted[lost]} lacks tensor {lost[:_SHOWN]!r}, which {INDEX} promises")
    return {name: shards[shard][name] for name, shard in wanted.items()}


def _read_index(index: Path) -> dict[str, str]:
    """The name of each tensor and its shard."""
    try:
        wanted = read_object(index)["weight_map"]
        if not isinstance(wanted, dict):
            raise ValueError("its weight_map is not an object")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index} is not a usable index: {error!s:.200}") from error
    outside = next((shard for shard in wanted.values() if not _is_file_name(shard)), None)
    if outside is not None:
        shown = repr(outside)[:_SHOWN]
        raise CheckpointError(f"{index} names the shard {shown}; a shard must lie in the same folder")
    return wanted


def _is_file_name(shard: object) -> bool:
    return isinstance(shard, str) and Path(shard).name == shard and shard not in ("", ".", "..")


def _stored(path: Path, name: str, entry: Any, body: NDArray[np.uint8]) -> Stored:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damage_error(path, f"the entry of tensor {name[:_SHOWN]!r} is malformed") from error
    numbers = (*shape, start, end)
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in numbers):
        raise _damage_error(path, f"the entry of tensor {name[:_SHOWN]!r} is malformed")
    if dtype not in _ENCODINGS:
        raise CheckpointError(
            f"{path.name}: tensor {name[:_SHOWN]!r} is of type {dtype!r:.40};"
            f" supported are {', '.join(_ENCODINGS)}"
        )
    encoding = Encoding(dtype)
    if not start <= end <= len(body) or end - start != encoded_bytes(encoding, elements(shape)):
        raise _damage_error(
            path,
            f"tensor {name[:_SHOWN]!r} of shape {list(shape)} lies at bytes {start} to {end} of {len(body)}:"
            " it is cut short or corrupt",
        )
    return Stored(path, name, encoding, shape, body[start:end])


def _damage_error(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path.name} is not a usable safetensors file: {problem}")
