"""Rotary settings as the files of every family write them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.errors import CheckpointError
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.rope import (
    LinearScaling,
    Llama3Scaling,
    Rope,
    RopeLayout,
    YarnScaling,
    inverse_frequencies,
)

GGUF_FACTORS = "rope_freqs.weight"
GGUF_SHORT_FACTORS, GGUF_LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"


def read_rope(fields: Fields, layout: RopeLayout, theta: float = 10000.0) -> Rope:
    """The settings of a config.json, as Transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters)
    writes them; `theta` is the family's default base."""
    entries = fields.inner("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    theta = fields.number("rope_theta", theta)
    return read_rope_entries(entries, layout, theta, fields.integer("max_position_embeddings"))


def read_rope_entries(fields: Fields, layout: RopeLayout, theta: float, context: int) -> Rope:
    """The entries of rope_parameters or rope_scaling; `theta` and `context` are the defaults."""
    theta = fields.number("rope_theta", theta)
    if theta <= 0:
        raise CheckpointError(f"{fields.source}: rope_theta is {theta}; it must be above 0")
    kind = "rope_type" if fields.has("rope_type") or not fields.has("type") else "type"
    match fields.word(kind, "default"):
        case "default":
            return Rope(theta, layout)
        case "linear":
            return Rope(theta, layout, LinearScaling(_factor(fields)))
        case "llama3":
            return Rope(theta, layout, _llama3(fields, context))
        case "yarn":
            return Rope(theta, layout, _yarn(fields, theta, context))
        case _:
            raise fields.refuse(kind, "'default', 'linear', 'llama3' or 'yarn'")


def _factor(fields: Fields, key: str = "factor", default: float | None = None) -> float:
    factor = fields.number(key, default)
    if factor <= 0:
        raise fields.refuse(key, "above 0")
    return factor


def _original(fields: Fields, context: int, key: str = "original_max_position_embeddings") -> int:
    original = fields.integer(key, context)
    if original < 1:
        raise fields.refuse(key, "at least 1")
    return original


def _llama3(fields: Fields, context: int) -> Llama3Scaling:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if not 0 < low < high:
        raise fields.refuse("low_freq_factor", "above 0 and below high_freq_factor")
    return Llama3Scaling(_factor(fields), low, high, _original(fields, context))


def _yarn(fields: Fields, theta: float, context: int) -> YarnScaling:
    factor = _factor(fields)
    amplitude = fields.number("attention_factor", _yarn_amplitude(factor))
    whole, part = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    if whole and part and not fields.has("attention_factor"):
        amplitude = _yarn_amplitude(factor, whole) / _yarn_amplitude(factor, part)
    if not amplitude > 0:
        raise fields.refuse("attention_factor", "above 0")
    fast, slow = _factor(fields, "beta_fast", 32.0), _factor(fields, "beta_slow", 1.0)
    if theta <= 1:
        raise CheckpointError(f"{fields.source}: rope_theta is {theta}; with YaRN it must be above 1")
    truncate = fields.flag("truncate", True)
    return YarnScaling(factor, _original(fields, context), amplitude, fast, slow, truncate)


def _yarn_amplitude(factor: float, scale: float = 1.0) -> float:
    """0.1 * ln(factor) + 1, the paper's equation 22; `scale` is DeepSeek's addition."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_json(rope: Rope) -> dict[str, Any]:
    """The entries of a config.json that `read_rope` reads `rope` from, if they can say it."""
    plain: dict[str, Any] = {"rope_theta": rope.theta}
    match rope.scaling:
        case LinearScaling(factor):
            return plain | {"rope_scaling": {"rope_type": "linear", "factor": factor}}
        case Llama3Scaling() as scaling:
            entries = {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
            return plain | {"rope_scaling": entries}
        case YarnScaling() as yarn:
            entries = {
                "rope_type": "yarn",
                "factor": yarn.factor,
                "attention_factor": yarn.amplitude,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "truncate": yarn.truncate,
                "original_max_position_embeddings": yarn.original_context,
            }
            return plain | {"rope_scaling": entries}
        case _:
            return plain


def read_gguf_rope(
    file: GgufFile, fields: Fields, head_dim: int, layout: RopeLayout, theta: float = 10000.0
) -> Rope:
    """The settings of a GGUF header; Llama 3.1's scaling is recognised by the factors that the file
    stores in its place."""
    theta = fields.number("rope.freq_base", theta)
    if theta <= 0:
        raise fields.refuse("rope.freq_base", "above 0")
    match fields.word("rope.scaling.type", "none"):
        case "none":
            return Rope(theta, layout, _stored_factors(file, theta, head_dim))
        case "linear":
            return Rope(theta, layout, LinearScaling(_factor(fields, "rope.scaling.factor")))
        case "yarn":
            return Rope(theta, layout, _gguf_yarn(fields, theta))
        case _:
            raise fields.refuse("rope.scaling.type", "'none', 'linear' or 'yarn'")


def _gguf_yarn(fields: Fields, theta: float) -> YarnScaling:
    if theta <= 1:
        raise fields.refuse("rope.freq_base", "above 1 with YaRN")
    factor = _factor(fields, "rope.scaling.factor")
    original = _original(fields, 0, "rope.scaling.original_context_length")
    amplitude = _factor(fields, "rope.scaling.attn_factor", 1.0) * _yarn_amplitude(factor)
    return YarnScaling(factor, original, amplitude)


def _stored_factors(file: GgufFile, theta: float, head_dim: int) -> Llama3Scaling | None:
    if GGUF_FACTORS not in file.tensors:
        return None
    factors = file.tensors[GGUF_FACTORS].read("f32").reshape(-1)
    if len(factors) * 2 != head_dim:
        raise CheckpointError(
            f"{file.path.name}: {GGUF_FACTORS} holds {len(factors)} factors for {head_dim // 2} pairs"
        )
    guess = Llama3Scaling(float(factors.max(initial=1.0)), 1.0, 4.0, 8192)
    stretched = inverse_frequencies(Rope(theta, scaling=guess), head_dim)
    expected = inverse_frequencies(Rope(theta), head_dim) / stretched
    if not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(f"{file.path.name}: {GGUF_FACTORS} does not follow Llama 3.1's scaling")
    return guess
