"""Phi-3 and Phi-4-mini: a Llama whose files hold queries, keys and values as one matrix and both halves of
the MLP as another, and in which a part of each head may stay unrotated.

longrope has factors for short contexts and others for long ones, and a model switches when the original
context is full, while keys of the shorter kind are in the cache. The context here ends where the short
factors do, so that a token never depends on when its request grew long.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from engine.errors import CheckpointError
from engine.models.checkpoints.fields import MOST_LAYERS, Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.checkpoints.stored import Place
from engine.models.config import ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat, Names, is_not_written
from engine.models.families.rope_entries import GGUF_SHORT_FACTORS
from engine.models.families.standard import (
    FOLDER_NAMES,
    GGUF_NAMES,
    gguf_fields,
    layer_count,
    read_standard,
    read_standard_gguf,
)
from engine.models.rope import FactorScaling, Rope, RopeLayout


def _read(fields: Fields, name: str) -> ModelConfig:
    hidden, heads = fields.integer("hidden_size"), max(1, fields.integer("num_attention_heads"))
    head_dim = fields.integer("head_dim", hidden // heads)
    rope, context = _rope(fields, head_dim)
    window = fields.integer("sliding_window", 0)
    return read_standard(
        fields,
        name,
        "phi3",
        rope=rope,
        context=context,
        windows=(max(window, 0),) * max(layer_count(fields), 0),
    )


def _rope(fields: Fields, head_dim: int) -> tuple[Rope, int]:
    """The rotation, and the context that it holds for."""
    key = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    inner = fields.inner(key)
    theta = inner.number("rope_theta", fields.number("rope_theta", 10000.0))
    part = inner.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if not 0 < part <= 1:
        raise fields.refuse("partial_rotary_factor", "above 0 and at most 1")
    turning = int(head_dim * part) // 2
    turning = 0 if turning == head_dim // 2 else turning
    context = fields.integer("max_position_embeddings")
    kind = inner.word("rope_type", inner.word("type", "default"))
    if kind == "default":
        return Rope(theta, turning=turning), context
    if kind not in ("longrope", "su", "yarn"):
        raise fields.refuse(key, "of type 'default' or 'longrope'")
    original = fields.integer(
        "original_max_position_embeddings", inner.integer("original_max_position_embeddings", context)
    )
    if original < 2:
        raise fields.refuse("original_max_position_embeddings", "at least 2")
    factors, pairs = inner.numbers("short_factor"), turning or head_dim // 2
    if len(factors) != pairs or min(factors, default=0.0) <= 0:
        raise fields.refuse(key, f"with {pairs} numbers above 0 as short_factor")
    factor = inner.number("factor", context / original)
    amplitude = inner.number("attention_factor", _amplitude(factor, original))
    return Rope(theta, scaling=FactorScaling(factors, amplitude), turning=turning), min(context, original)


def _amplitude(factor: float, original: int) -> float:
    """sqrt(1 + ln(factor) / ln(original context)): the longrope paper (Ding et al. 2024), section 4."""
    return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _places(names: Names, qkv: str, gate_up: str) -> Callable[[ModelConfig], dict[str, Place]]:
    """`names`, with the matrices that are stored as one."""

    def places(config: ModelConfig) -> dict[str, Place]:
        found = names(config)
        q, kv, ffn = config.q_dim, config.kv_dim, config.ffn
        order = _head_order(config)
        for i in range(config.layers):
            at, prefix = f"layers.{i}.", names.layer_prefix.format(i)
            found[at + "wq"] = Place(prefix + qkv, (0, q), order=order)
            found[at + "wk"] = Place(prefix + qkv, (q, q + kv), order=order)
            found[at + "wv"] = Place(prefix + qkv, (q + kv, q + 2 * kv))
            found[at + "w_gate"] = Place(prefix + gate_up, (0, ffn))
            found[at + "w_up"] = Place(prefix + gate_up, (ffn, 2 * ffn))
        return found

    return places


def _head_order(config: ModelConfig) -> tuple[int, ...]:
    """The rows of a head so that pair j is elements j and j + head_dim/2 also where a part is not rotated.

    The files have the rotated elements first, in two halves, then the others.
    """
    turning, pairs = config.rope.turning, config.head_dim // 2
    if not turning:
        return ()
    still = range(2 * turning, 2 * turning + pairs - turning)
    first = [*range(turning), *still]
    second = [*range(turning, 2 * turning), *range(still.stop, config.head_dim)]
    return (*first, *second)


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    fields = gguf_fields(file)
    hidden, heads = fields.integer("embedding_length"), max(1, fields.integer("attention.head_count"))
    head_dim = fields.integer("attention.key_length", hidden // heads)
    turned = fields.integer("rope.dimension_count", head_dim)
    if not 2 <= turned <= head_dim or turned % 2:
        raise fields.refuse("rope.dimension_count", f"an even number from 2 to {head_dim}")
    turning = 0 if turned == head_dim else turned // 2
    theta = fields.number("rope.freq_base", 10000.0)
    context = fields.integer("context_length")
    scaling = _gguf_factors(file, turned // 2)
    if scaling is not None:
        context = min(context, fields.integer("rope.scaling.original_context_length", context))
    layers = max(0, fields.integer("block_count", most=MOST_LAYERS))
    return read_standard_gguf(
        file,
        name,
        "phi3",
        RopeLayout.HALF,
        rope=Rope(theta, scaling=scaling, turning=turning),
        context=context,
        windows=(max(0, fields.integer("attention.sliding_window", 0)),) * layers,
    )


def _gguf_factors(file: GgufFile, pairs: int) -> FactorScaling | None:
    if GGUF_SHORT_FACTORS not in file.tensors:
        return None
    factors = file.tensors[GGUF_SHORT_FACTORS].read("f32").reshape(-1)
    if len(factors) != pairs or factors.min() <= 0:
        raise CheckpointError(f"{file.path.name}: {GGUF_SHORT_FACTORS} does not hold {pairs} numbers above 0")
    amplitude = gguf_fields(file).number("rope.scaling.attn_factor", 1.0)
    return FactorScaling(tuple(float(f) for f in factors), amplitude)


FAMILY = Family(
    name="phi3",
    title="Phi-3, Phi-4-mini",
    folder=FolderFormat(
        ("phi3",),
        _read,
        is_not_written,
        _places(FOLDER_NAMES, "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"),
    ),
    gguf=GgufFormat("phi3", _read_gguf, _places(GGUF_NAMES, "attn_qkv.weight", "ffn_up.weight")),
)
