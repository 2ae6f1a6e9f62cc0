"""Writing any model's weights as a Hugging Face folder, one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.laneformer import laneformer_config_json, laneformer_names
from engine.models.checkpoints.llama import llama_config_json, llama_names
from engine.models.checkpoints.rope_layout import turn_rows
from engine.models.checkpoints.safetensors_file import INDEX, SINGLE
from engine.models.config import HeadKind, ModelConfig, RopeLayout
from engine.models.weights import DType, Weights, tensor_shapes

Style = Literal["llama", "laneformer"]
_CODES: dict[DType, tuple[str, int]] = {"f32": ("F32", 4), "f16": ("F16", 2), "bf16": ("BF16", 2)}
_LAYOUTS: dict[Style, RopeLayout] = {"llama": RopeLayout.HALF, "laneformer": RopeLayout.INTERLEAVED}


def write_checkpoint(
    weights: Weights,
    folder: Path,
    *,
    style: Style | None = None,
    dtype: DType | None = None,
    shard_bytes: int = 4 << 30,
) -> Path:
    """Writes `weights` to `folder` (config.json and safetensors) and returns it.

    `style` is Laneformer for a model with lanes or windows, else Llama; query and key rows are turned to
    the rotary layout of the style. `dtype` is the weights' native type unless given. No file is larger
    than `shard_bytes` unless one tensor is. Raises ConfigError if the style cannot say the shape,
    CheckpointError if the folder already holds a model or cannot be written.
    """
    config = weights.config
    plain = config.lanes.count == 1 and not any(config.windows)
    style = style or ("llama" if plain else "laneformer")
    turned = replace(config, rope=replace(config.rope, layout=_LAYOUTS[style]))
    description = llama_config_json(turned) if style == "llama" else laneformer_config_json(turned)
    kind = dtype or weights.native
    description["torch_dtype"] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[kind]
    names = llama_names(config) if style == "llama" else laneformer_names(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "config.json").exists():
            raise CheckpointError(f"{folder} already holds a model; name an empty folder")
        shards = list(_shards(config, _CODES[kind][1], shard_bytes))
        files = _file_names(len(shards))
        for file, shard in zip(files, shards, strict=True):
            _write_file(folder / file, weights, shard, names, style, kind)
        if len(files) > 1:
            _write_index(folder, files, shards, names, _CODES[kind][1])
        (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error}") from error
    return folder


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
    path: Path, weights: Weights, shard: Shard, names: Mapping[str, str], style: Style, dtype: DType
) -> None:
    code, item = _CODES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shard:
        end = at + math.prod(shape) * item
        stored = _file_shape(weights.config, name, shape, style)
        header[names[name]] = {"dtype": code, "shape": stored, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, _ in shard:
            _turn(weights.get(name, dtype), weights.config, name, style).tofile(file)


def _turn(tensor: NDArray[Any], config: ModelConfig, name: str, style: Style) -> NDArray[Any]:
    if name.rsplit(".", 1)[-1] not in ("wq", "wk"):
        return tensor
    return turn_rows(tensor, config.head_dim, config.rope.layout, _LAYOUTS[style])


def _file_shape(config: ModelConfig, name: str, shape: tuple[int, ...], style: Style) -> list[int]:
    """Llama files know no lane axis; a Laneformer's head cut by vocabulary has one."""
    if style == "llama" and len(shape) == 3:
        return list(shape[1:])
    if style == "laneformer" and name == "head" and config.lanes.head is HeadKind.VOCAB_PARALLEL:
        return [config.lanes.count, shape[0] // config.lanes.count, shape[1]]
    return list(shape)


def _write_index(
    folder: Path, files: list[str], shards: list[Shard], names: Mapping[str, str], item: int
) -> None:
    places = {names[name]: file for file, shard in zip(files, shards, strict=True) for name, _ in shard}
    total = sum(math.prod(shape) * item for shard in shards for _, shape in shard)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")
