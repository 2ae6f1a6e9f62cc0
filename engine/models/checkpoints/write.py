"""Writing any model's weights as a Hugging Face folder, one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from engine.errors import CheckpointError, ConfigError
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.rope_layout import turn_rows
from engine.models.checkpoints.safetensors_file import INDEX, SINGLE
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.families import family_of
from engine.models.families.family import FolderFormat
from engine.models.rope import RopeLayout
from engine.models.weights import DType, Weights

_CODES: dict[DType, tuple[str, int]] = {"f32": ("F32", 4), "f16": ("F16", 2), "bf16": ("BF16", 2)}


def write_checkpoint(
    weights: Weights,
    folder: Path,
    *,
    family: str | None = None,
    dtype: DType | None = None,
    shard_bytes: int = 4 << 30,
) -> Path:
    """Writes `weights` to `folder` (config.json and safetensors) and returns it.

    `family` is the model's own unless given; query and key rows are turned to its rotary layout. `dtype`
    is the weights' native type unless given. No file is larger than `shard_bytes` unless one tensor is.
    Raises ConfigError if the family's files cannot say the shape, CheckpointError if the folder already
    holds a model or cannot be written.
    """
    config = weights.config
    form = family_of(family or config.family).folder
    description = _describe(config, form)
    kind = dtype or weights.native
    description["torch_dtype"] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[kind]
    names = {ours: place.name for ours, place in form.places(config).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "config.json").exists():
            raise CheckpointError(f"{folder} already holds a model; name an empty folder")
        shards = list(_shards(config, _CODES[kind][1], shard_bytes))
        files = _file_names(len(shards))
        for file, shard in zip(files, shards, strict=True):
            _write_file(folder / file, weights, shard, names, form, kind)
        if len(files) > 1:
            _write_index(folder, files, shards, names, _CODES[kind][1])
        (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error}") from error
    return folder


def _describe(config: ModelConfig, form: FolderFormat) -> dict[str, Any]:
    """The config.json of `config`. Raises ConfigError unless reading it would give the same shape."""
    turned = replace(config, rope=replace(config.rope, layout=form.layout))
    description = form.write(turned)
    read = form.read(Fields("config.json", description), config.name)
    if replace(read, family=config.family) != turned:
        kinds = " or ".join(form.model_types)
        raise ConfigError(
            f"model {config.name!r} has a shape that a config.json of {kinds} cannot say: name another family"
        )
    return description


Shard = list[tuple[str, tuple[int, ...]]]
"""Canonical names and shapes of the tensors in one file."""


def _shards(config: ModelConfig, item: int, most: int) -> Iterator[Shard]:
    shard: Shard = []
    size = 0
    for name, shape in tensor_shapes(config):
        bytes_here = math.prod(shape) * item
        if shard and size + bytes_here > most:
            yield shard
            shard, size = [], 0
        shard.append((name, shape))
        size += bytes_here
    yield shard


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def _write_file(
    path: Path, weights: Weights, shard: Shard, names: Mapping[str, str], form: FolderFormat, dtype: DType
) -> None:
    code, item = _CODES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shard:
        end = at + math.prod(shape) * item
        stored = form.stored_shape(weights.config, name, shape)
        header[names[name]] = {"dtype": code, "shape": list(stored), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, _ in shard:
            _turn(weights.get(name, dtype), weights.config, name, form.layout).tofile(file)


def _turn(tensor: NDArray[Any], config: ModelConfig, name: str, layout: RopeLayout) -> NDArray[Any]:
    """`tensor` with the rows of each query and key head in the order of `layout`."""
    match name.rsplit(".", 1)[-1]:
        case "wq" | "wk":
            return turn_rows(tensor, config.head_dim, config.rope.layout, layout)
        case "bq" | "bk" | "q_norm" | "k_norm":
            column = tensor[..., None]
            return turn_rows(column, config.head_dim, config.rope.layout, layout)[..., 0]
        case _:
            return tensor


def _write_index(
    folder: Path, files: list[str], shards: list[Shard], names: Mapping[str, str], item: int
) -> None:
    places = {names[name]: file for file, shard in zip(files, shards, strict=True) for name, _ in shard}
    total = sum(math.prod(shape) * item for shard in shards for _, shape in shard)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")
