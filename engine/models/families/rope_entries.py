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
    RopeScaling,
    YarnScaling,
    inverse_frequencies,
)

GGUF_FACTORS = "rope_freqs.weight"


def read_rope(fields: Fields, layout: RopeLayout, theta: float = 10000.0) -> Rope:
    """The settings of a config.json, as Transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters)
    writes them; `theta` is the family's default base."""
    key = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    inner = fields.inner(key)
    theta = inner.number("rope_theta", fields.number("rope_theta", theta))
    if theta <= 0:
        raise CheckpointError(f"{fields.source}: rope_theta is {theta}; it must be above 0")
    context = fields.integer("max_position_embeddings")
    return Rope(theta, layout, _scaling(fields, inner, key, context))


def _scaling(fields: Fields, inner: Fields, key: str, context: int) -> RopeScaling | None:
    match inner.word("rope_type", inner.word("type", "default")):
        case "default":
            return None
        case "linear":
            return LinearScaling(_factor(fields, inner, key))
        case "llama3":
            return _llama3(fields, inner, key, context)
        case "yarn":
            return _yarn(fields, inner, key, context)
        case _:
            raise fields.refuse(key, "of type 'default', 'linear', 'llama3' or 'yarn'")


def _factor(fields: Fields, inner: Fields, key: str) -> float:
    factor = inner.number("factor")
    if factor <= 0:
        raise fields.refuse(key, "a scaling with a factor above 0")
    return factor


def _original(fields: Fields, inner: Fields, key: str, context: int) -> int:
    original = inner.integer("original_max_position_embeddings", context)
    if original < 1:
        raise fields.refuse(key, "a scaling with an original context of at least 1")
    return original


def _llama3(fields: Fields, inner: Fields, key: str, context: int) -> Llama3Scaling:
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if not 0 < low < high:
        raise fields.refuse(key, "a scaling with 0 < low_freq_factor < high_freq_factor")
    return Llama3Scaling(_factor(fields, inner, key), low, high, _original(fields, inner, key, context))


def _yarn(fields: Fields, inner: Fields, key: str, context: int) -> YarnScaling:
    factor = _factor(fields, inner, key)
    amplitude = inner.number("attention_factor", _yarn_amplitude(factor))
    whole, part = inner.number("mscale", 0.0), inner.number("mscale_all_dim", 0.0)
    if whole and part and not inner.has("attention_factor"):
        amplitude = _yarn_amplitude(factor, whole) / _yarn_amplitude(factor, part)
    fast, slow = inner.number("beta_fast", 32.0), inner.number("beta_slow", 1.0)
    if not (fast > 0 and slow > 0 and amplitude > 0):
        raise fields.refuse(key, "a scaling with beta_fast, beta_slow and attention_factor above 0")
    original = _original(fields, inner, key, context)
    return YarnScaling(factor, original, amplitude, fast, slow, inner.flag("truncate", True))


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


def read_gguf_rope(file: GgufFile, fields: Fields, head_dim: int, layout: RopeLayout) -> Rope:
    """The settings of a GGUF header; Llama 3.1's scaling is recognised by the factors that the file
    stores in its place."""
    theta = fields.number("rope.freq_base", 10000.0)
    if theta <= 0:
        raise fields.refuse("rope.freq_base", "above 0")
    match fields.word("rope.scaling.type", "none"):
        case "none":
            scaling: RopeScaling | None = _stored_factors(file, theta, head_dim)
        case "linear":
            scaling = LinearScaling(_gguf_factor(fields))
        case "yarn":
            factor = _gguf_factor(fields)
            original = fields.integer("rope.scaling.original_context_length")
            if original < 1:
                raise fields.refuse("rope.scaling.original_context_length", "at least 1")
            amplitude = fields.number("rope.scaling.attn_factor", 1.0) * _yarn_amplitude(factor)
            scaling = YarnScaling(factor, original, amplitude)
        case _:
            raise fields.refuse("rope.scaling.type", "'none', 'linear' or 'yarn'")
    return Rope(theta, layout, scaling)


def _gguf_factor(fields: Fields) -> float:
    factor = fields.number("rope.scaling.factor")
    if factor <= 0:
        raise fields.refuse("rope.scaling.factor", "above 0")
    return factor


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
