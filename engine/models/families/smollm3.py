"""SmolLM3: a Llama in which every fourth layer does not rotate queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat
from engine.models.families.rope_entries import read_rope
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

_INTERVAL = 4
"""One layer of so many is without rotation, unless a file says otherwise."""


def _read(fields: Fields, name: str) -> ModelConfig:
    layers = layer_count(fields)
    rope = read_rope(fields, RopeLayout.HALF, theta=2_000_000.0)
    rotated = _rotating_layers(fields, layers)
    windows: tuple[int, ...] = ()
    if fields.flag("use_sliding_window", False):
        windows = read_windows(fields, tuple(not turns for turns in rotated))
    return read_standard(
        fields,
        name,
        "smollm3",
        rope=rope,
        layer_ropes=tuple(rope if turns else None for turns in rotated),
        windows=windows,
        tied_head=fields.flag("tie_word_embeddings", True),
    )


def _rotating_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    if not fields.has("no_rope_layers"):
        interval = fields.integer("no_rope_layer_interval", _INTERVAL)
        if interval < 1:
            raise fields.refuse("no_rope_layer_interval", "at least 1")
        return tuple((i + 1) % interval != 0 for i in range(layers))
    marks = fields.integers("no_rope_layers")
    if len(marks) < layers or not set(marks) <= {0, 1}:
        raise fields.refuse("no_rope_layers", f"a list of 0 and 1 for each of the {layers} layers")
    return tuple(mark == 1 for mark in marks[:layers])


def _write(config: ModelConfig) -> dict[str, Any]:
    marks = [int(config.rope_of(i) is not None) for i in range(config.layers)]
    entries = standard_json(config, "smollm3", "SmolLM3ForCausalLM") | windows_json(config)
    return entries | {"no_rope_layers": marks}


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    """The header does not speak of the layers without rotation; llama.cpp takes every fourth."""
    config = read_standard_gguf(file, name, "smollm3", RopeLayout.INTERLEAVED)
    ropes = tuple(config.rope if (i + 1) % _INTERVAL else None for i in range(config.layers))
    return replace(config, layer_ropes=ropes)


FAMILY = Family(
    name="smollm3",
    title="SmolLM3",
    folder=FolderFormat(("smollm3",), _read, _write, FOLDER_NAMES),
    gguf=GgufFormat("smollm3", _read_gguf, GGUF_NAMES),
)
