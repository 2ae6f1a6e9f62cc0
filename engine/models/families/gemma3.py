"""Gemma 3, text: as Gemma 2 with a norm on heads in place of soft caps, a window on five layers of six, and
one rotary base for those and another for the layers of full attention.

Folders whose model_type is "gemma3" hold what sees images beside the text model, which alone is read. Their
description leaves out what is as in transformers' class.
"""

from __future__ import annotations

import math
from dataclasses import replace

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import Activation, ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat, is_not_written
from engine.models.families.gemma2 import (
    GEMMA_FOLDER_NAMES,
    GEMMA_GGUF_NAMES,
    attention_scale,
    gemma_arithmetic,
    gguf_attention_scale,
    soft_cap,
)
from engine.models.families.rope_entries import read_gguf_rope, read_rope, read_rope_entries
from engine.models.families.standard import (
    gguf_fields,
    layer_count,
    read_standard,
    read_standard_gguf,
    read_windows,
)
from engine.models.rope import Rope, RopeLayout

_WITH_IMAGES = "gemma3"
_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "max_position_embeddings": 131072,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "hidden_size": 2304,
}
"""Of Gemma3TextConfig."""
_SEES_IMAGES = ("vision_tower.", "multi_modal_projector.")
_PATTERN = 6
_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0


def _read(fields: Fields, name: str) -> ModelConfig:
    if fields.word("model_type") == _WITH_IMAGES:
        fields = fields.inner("text_config").with_defaults(_DEFAULTS)
    layers = layer_count(fields)
    pattern = fields.integer("sliding_window_pattern", _PATTERN)
    if pattern < 1:
        raise fields.refuse("sliding_window_pattern", "at least 1")
    windows = read_windows(fields, tuple((i + 1) % pattern != 0 for i in range(layers)), 4096)
    full, sliding = _ropes(fields)
    own = gemma_arithmetic(fields, fields.integer("hidden_size"))
    return read_standard(
        fields,
        name,
        "gemma3",
        **own,
        qk_norm=True,
        attention_scale=attention_scale(fields, own["head_dim"]),
        attention_cap=soft_cap(fields, "attn_logit_softcapping", 0.0),
        logit_cap=soft_cap(fields, "final_logit_softcapping", 0.0),
        windows=windows,
        rope=full,
        layer_ropes=tuple(sliding if window else full for window in windows or (0,) * max(layers, 0)),
    )


def _own_name(name: str) -> str | None:
    """Names as in folders without images, from both orders that folders with them have had."""
    plain = name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)
    return None if plain.removeprefix("model.").startswith(_SEES_IMAGES) else plain


def _ropes(fields: Fields) -> tuple[Rope, Rope]:
    """Those of full attention and of windows: Transformers 5 writes both, 4 a second base."""
    if not fields.has("rope_parameters"):
        local = fields.number("rope_local_base_freq", _LOCAL_THETA)
        if local <= 0:
            raise fields.refuse("rope_local_base_freq", "above 0")
        return read_rope(fields, RopeLayout.HALF, _GLOBAL_THETA), Rope(local)
    kinds = fields.inner("rope_parameters")
    context = fields.integer("max_position_embeddings")
    full = read_rope_entries(kinds.inner("full_attention"), RopeLayout.HALF, _GLOBAL_THETA, context)
    return full, read_rope_entries(kinds.inner("sliding_attention"), RopeLayout.HALF, _LOCAL_THETA, context)


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    fields = gguf_fields(file)
    config = read_standard_gguf(
        file,
        name,
        "gemma3",
        RopeLayout.HALF,
        post_norms=True,
        qk_norm=True,
        activation=Activation.GELU_TANH,
    )
    window = fields.integer("attention.sliding_window")
    windows = tuple(window if (i + 1) % _PATTERN else 0 for i in range(config.layers))
    full = read_gguf_rope(file, fields, config.head_dim, RopeLayout.HALF, _GLOBAL_THETA)
    sliding = Rope(fields.number("rope.freq_base_swa", _LOCAL_THETA))
    return replace(
        config,
        embedding_scale=math.sqrt(config.hidden),
        attention_scale=gguf_attention_scale(config, largest=62),
        windows=windows,
        rope=full,
        layer_ropes=tuple(sliding if w else full for w in windows),
    )


FAMILY = Family(
    name="gemma3",
    title="Gemma 3 (text)",
    folder=FolderFormat(
        ("gemma3_text", _WITH_IMAGES), _read, is_not_written, GEMMA_FOLDER_NAMES, own_name=_own_name
    ),
    gguf=GgufFormat("gemma3", _read_gguf, GEMMA_GGUF_NAMES),
)
