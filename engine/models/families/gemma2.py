"""Gemma 2: norms before and after attention and MLP, GELU, soft caps, a scaled embedding, and a window on
every other layer. Files of folders hold the scales of norms less one, GGUF files hold them whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import Activation, ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat, Names, is_not_written
from engine.models.families.standard import (
    FOLDER_NAMES,
    GGUF_NAMES,
    gguf_fields,
    layer_count,
    read_standard,
    read_standard_gguf,
    read_windows,
)
from engine.models.rope import RopeLayout

_POST_NORMS: Mapping[str, str] = {
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
_GGUF_POST_NORMS: Mapping[str, str] = {
    "attn_post_norm": "post_attention_norm.weight",
    "ffn_post_norm": "post_ffw_norm.weight",
}
GEMMA_FOLDER_NAMES: Names = replace(
    FOLDER_NAMES, layer={**FOLDER_NAMES.layer, **_POST_NORMS}, norm_offset=1.0
)
GEMMA_GGUF_NAMES: Names = replace(GGUF_NAMES, layer={**GGUF_NAMES.layer, **_GGUF_POST_NORMS})
_WINDOW = 4096


def gemma_arithmetic(fields: Fields, hidden: int) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common. The embedding's factor, sqrt(hidden), is not rounded."""
    if fields.word("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise fields.refuse("hidden_activation", "'gelu_pytorch_tanh'")
    if fields.flag("use_bidirectional_attention", False):
        raise fields.refuse("use_bidirectional_attention", "false")
    return {
        "post_norms": True,
        "activation": Activation.GELU_TANH,
        "embedding_scale": math.sqrt(max(hidden, 1)),
        "head_dim": fields.integer("head_dim", 256),
        "kv_heads": fields.integer("num_key_value_heads", 4),
        "tied_head": fields.flag("tie_word_embeddings", True),
    }


def attention_scale(fields: Fields, head_dim: int) -> float:
    """1 / sqrt(query_pre_attn_scalar); 0, the default of ModelConfig, where that is the head's size."""
    scalar = fields.number("query_pre_attn_scalar", 256.0)
    if scalar <= 0:
        raise fields.refuse("query_pre_attn_scalar", "above 0")
    return 0.0 if scalar == head_dim else scalar**-0.5


def soft_cap(fields: Fields, key: str, default: float) -> float:
    """An entry of null means no cap."""
    if fields.mentions(key) and not fields.has(key):
        return 0.0
    cap = fields.number(key, default)
    if cap < 0:
        raise fields.refuse(key, "above 0, or null")
    return cap


def _read(fields: Fields, name: str) -> ModelConfig:
    layers = layer_count(fields)
    own = gemma_arithmetic(fields, fields.integer("hidden_size"))
    return read_standard(
        fields,
        name,
        "gemma2",
        **own,
        attention_scale=attention_scale(fields, own["head_dim"]),
        attention_cap=soft_cap(fields, "attn_logit_softcapping", 50.0),
        logit_cap=soft_cap(fields, "final_logit_softcapping", 30.0),
        windows=read_windows(fields, tuple(i % 2 == 0 for i in range(layers)), _WINDOW),
    )


def gguf_attention_scale(config: ModelConfig, largest: int) -> float:
    """The largest model of a generation, known by its layers, scales by hidden / heads: llama.cpp's rule."""
    return (config.hidden / config.heads) ** -0.5 if config.layers == largest else 0.0


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    fields = gguf_fields(file)
    config = read_standard_gguf(
        file,
        name,
        "gemma2",
        RopeLayout.HALF,
        post_norms=True,
        activation=Activation.GELU_TANH,
        attention_cap=soft_cap(fields, "attn_logit_softcapping", 50.0),
        logit_cap=soft_cap(fields, "final_logit_softcapping", 30.0),
    )
    window = fields.integer("attention.sliding_window", _WINDOW)
    return replace(
        config,
        embedding_scale=math.sqrt(config.hidden),
        attention_scale=gguf_attention_scale(config, largest=46),
        windows=tuple(0 if i % 2 else window for i in range(config.layers)),
    )


FAMILY = Family(
    name="gemma2",
    title="Gemma 2",
    folder=FolderFormat(("gemma2",), _read, is_not_written, GEMMA_FOLDER_NAMES),
    gguf=GgufFormat("gemma2", _read_gguf, GEMMA_GGUF_NAMES),
)
