"""Llama 2, 3, 3.1 and 3.2, SmolLM 1 and 2, and the many models that took their architecture."""

from __future__ import annotations

from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat
from engine.models.families.standard import (
    FOLDER_NAMES,
    GGUF_NAMES,
    read_standard,
    read_standard_gguf,
    standard_json,
)
from engine.models.rope import RopeLayout


def _read(fields: Fields, name: str) -> ModelConfig:
    return read_standard(fields, name, "llama")


def _write(config: ModelConfig) -> dict[str, Any]:
    return standard_json(config, "llama", "LlamaForCausalLM")


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    """GGUF keeps the rows of Llama's query and key matrices in the order of interleaved pairs."""
    return read_standard_gguf(file, name, "llama", RopeLayout.INTERLEAVED)


FAMILY = Family(
    name="llama",
    title="Llama 2 and 3, SmolLM2",
    folder=FolderFormat(("llama",), _read, _write, FOLDER_NAMES),
    gguf=GgufFormat("llama", _read_gguf, GGUF_NAMES),
)
