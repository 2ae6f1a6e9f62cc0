"""Qwen2, Qwen2.5 and Qwen2.5-Coder: a Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat
from engine.models.families.standard import (
    FOLDER_NAMES,
    GGUF_NAMES,
    layer_count,
    read_standard,
    read_standard_gguf,
    read_windows,
    standard_json,
    windows_json,
)
from engine.models.rope import RopeLayout


def qwen_windows(fields: Fields) -> tuple[int, ...]:
    """Layers from `max_window_layers` on have a window, if `use_sliding_window` says so."""
    layers = layer_count(fields)
    if not fields.flag("use_sliding_window", False):
        return ()
    first = fields.integer("max_window_layers", 28)
    return read_windows(fields, tuple(i >= first for i in range(layers)), 4096)


def _read(fields: Fields, name: str) -> ModelConfig:
    return read_standard(fields, name, "qwen2", qkv_bias=True, windows=qwen_windows(fields))


def _write(config: ModelConfig) -> dict[str, Any]:
    return standard_json(config, "qwen2", "Qwen2ForCausalLM") | windows_json(config)


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    return read_standard_gguf(file, name, "qwen2", RopeLayout.HALF, qkv_bias=True)


FAMILY = Family(
    name="qwen2",
    title="Qwen2, Qwen2.5, Qwen2.5-Coder",
    folder=FolderFormat(("qwen2",), _read, _write, FOLDER_NAMES),
    gguf=GgufFormat("qwen2", _read_gguf, GGUF_NAMES),
)
