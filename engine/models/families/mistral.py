"""Mistral: a Llama whose layers all have the same sliding window, or none.

In GGUF a Mistral is a file of architecture "llama", and has no window there either.
"""

from __future__ import annotations

from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.config import ModelConfig
from engine.models.families.family import Family, FolderFormat
from engine.models.families.standard import FOLDER_NAMES, layer_count, read_standard, standard_json

_DEFAULT_WINDOW = 4096
"""What transformers takes when config.json lacks the entry; an entry of null means full attention."""


def _read(fields: Fields, name: str) -> ModelConfig:
    window = 0
    if fields.has("sliding_window") or not fields.mentions("sliding_window"):
        window = fields.integer("sliding_window", _DEFAULT_WINDOW)
        if window < 1:
            raise fields.refuse("sliding_window", "at least 1, or null")
    return read_standard(fields, name, "mistral", windows=(window,) * max(layer_count(fields), 0))


def _write(config: ModelConfig) -> dict[str, Any]:
    window = {"sliding_window": config.windows[0] or None}
    return standard_json(config, "mistral", "MistralForCausalLM") | window


FAMILY = Family(
    name="mistral",
    title="Mistral 7B and its kin",
    folder=FolderFormat(("mistral",), _read, _write, FOLDER_NAMES),
)
