"""GPT-OSS: experts in MXFP4, sinks in attention, a window on every other layer, biases nearly everywhere.

Folders as published hold the experts as FP4 blocks with scales beside them, [experts, rows, ...]; folders
that were widened hold them as [experts, columns, rows]. Both deal the rows of the gates and of the other
half in turn. GGUF files hold the halves apart.

llama.cpp rounds the bounds of YaRN's blend; the published configuration says not to (`truncate`: false), in
GGUF files too, which cannot say it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.checkpoints.stored import Place
from engine.models.config import Activation, Experts, ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat, is_not_written
from engine.models.families.rope_entries import read_gguf_rope, read_rope
from engine.models.families.standard import (
    FOLDER_NAMES,
    GGUF_NAMES,
    gguf_experts,
    gguf_fields,
    layer_count,
    read_standard,
    read_standard_gguf,
    read_windows,
)
from engine.models.rope import Rope, RopeLayout, YarnScaling

_ALPHA, _LIMIT = 1.702, 7.0
_THETA = 150000.0
_WINDOW = 128
_HEAD_DIM = 64

_EXPERTS = "mlp.experts."
_FOLDER_NAMES = replace(
    FOLDER_NAMES,
    layer={**FOLDER_NAMES.layer, "router": "mlp.router.weight", "router_bias": "mlp.router.bias"},
    expert={
        "w_gate": _EXPERTS + "gate_up_proj",
        "w_up": _EXPERTS + "gate_up_proj",
        "w_down": _EXPERTS + "down_proj",
        "b_gate": _EXPERTS + "gate_up_proj_bias",
        "b_up": _EXPERTS + "gate_up_proj_bias",
        "b_down": _EXPERTS + "down_proj_bias",
    },
)
_GGUF_NAMES = replace(GGUF_NAMES, layer={**GGUF_NAMES.layer, "ffn_norm": "post_attention_norm.weight"})
_FIRST_ROW = {"w_gate": 0, "b_gate": 0, "w_up": 1, "b_up": 1}
"""Where the rows of a half begin among those of both."""


def _places(config: ModelConfig) -> dict[str, Place]:
    return dict(_split_halves(config, _FOLDER_NAMES(config)))


def _split_halves(config: ModelConfig, places: dict[str, Place]) -> Iterator[tuple[str, Place]]:
    """`places`, with the two halves of each expert told apart and FP4 blocks where a file has them."""
    for name, place in places.items():
        kind = name.rsplit(".", 1)[-1]
        if place.expert is not None and kind in _FIRST_ROW:
            place = replace(place, rows=(_FIRST_ROW[kind], 2 * config.ffn), step=2)
        if place.expert is not None and kind.startswith("w_"):
            wide = replace(place, transposed=True)
            place = replace(place, name=place.name + "_blocks", otherwise=wide)
        yield name, place


def _arithmetic(experts: Experts, limit: float) -> dict[str, Any]:
    """What a GPT-OSS does beyond a plain Llama."""
    return {
        "qkv_bias": True,
        "out_bias": True,
        "sinks": True,
        "activation": Activation.CLAMPED_SWIGLU,
        "swiglu_limit": limit,
        "experts": experts,
    }


def _read(fields: Fields, name: str) -> ModelConfig:
    if not fields.flag("attention_bias", True):
        raise fields.refuse("attention_bias", "true")
    if fields.number("swiglu_alpha", _ALPHA) != _ALPHA:
        raise fields.refuse("swiglu_alpha", str(_ALPHA))
    limit = fields.number("swiglu_limit", _LIMIT)
    if limit <= 0:
        raise fields.refuse("swiglu_limit", "above 0")
    experts = Experts(
        count=fields.integer("num_local_experts"),
        chosen=fields.integer("num_experts_per_tok", 4),
        biased=True,
    )
    sliding = tuple(i % 2 == 0 for i in range(layer_count(fields)))
    return read_standard(
        fields,
        name,
        "gpt_oss",
        **_arithmetic(experts, limit),
        head_dim=fields.integer("head_dim", _HEAD_DIM),
        rope=read_rope(fields, RopeLayout.HALF, _THETA),
        windows=read_windows(fields, sliding, _WINDOW),
    )


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    fields = gguf_fields(file)
    head_dim = fields.integer("attention.key_length", _HEAD_DIM)
    window = fields.integer("attention.sliding_window", _WINDOW)
    config = read_standard_gguf(
        file,
        name,
        "gpt_oss",
        RopeLayout.HALF,
        **_arithmetic(gguf_experts(fields, biased=True), _LIMIT),
        ffn=fields.integer("expert_feed_forward_length", fields.integer("feed_forward_length")),
        rope=_unrounded(read_gguf_rope(file, fields, head_dim, RopeLayout.HALF, _THETA)),
    )
    return replace(config, windows=tuple(0 if i % 2 else window for i in range(config.layers)))


def _unrounded(rope: Rope) -> Rope:
    if not isinstance(rope.scaling, YarnScaling):
        return rope
    return replace(rope, scaling=replace(rope.scaling, truncate=False))


FAMILY = Family(
    name="gpt_oss",
    title="GPT-OSS (20B, 120B)",
    folder=FolderFormat(("gpt_oss",), _read, is_not_written, _places),
    gguf=GgufFormat("gpt-oss", _read_gguf, _GGUF_NAMES),
)
