"""Qwen3, dense: each head of queries and keys is normalised before it is rotated."""

from __future__ import annotations

from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat
from engine.models.families.qwen2 import qwen_windows
from engine.models.families.standard import (
    FOLDER_NAMES,
    GGUF_NAMES,
    read_standard,
    read_standard_gguf,
    standard_json,
    windows_json,
)
from engine.models.rope import RopeLayout


def _read(fields: Fields, name: str) -> ModelConfig:
    return read_standard(
        fields,
        name,
        "qwen3",
        qk_norm=True,
        head_dim=fields.integer("head_dim", 128),
        windows=qwen_windows(fields),
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    return standard_json(config, "qwen3", "Qwen3ForCausalLM") | windows_json(config)


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    return read_standard_gguf(file, name, "qwen3", RopeLayout.HALF, qk_norm=True)


FAMILY = Family(
    name="qwen3",
    title="Qwen3 (dense)",
    folder=FolderFormat(("qwen3",), _read, _write, FOLDER_NAMES),
    gguf=GgufFormat("qwen3", _read_gguf, GGUF_NAMES),
)
