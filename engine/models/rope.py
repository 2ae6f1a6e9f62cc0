"""Rotary positions (Su et al. 2021), in both element layouts, with Llama 3.1's scaling."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.models.config import Rope, RopeLayout, RopeScaling


def inverse_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Radians a position for each of the head_dim / 2 pairs."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    frequencies = rope.theta**-exponents
    return frequencies if rope.scaling is None else _stretched(frequencies, rope.scaling)


def _stretched(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Long wavelengths `factor` times as long, short ones kept, those between blended smoothly."""
    turns = scaling.original_context * frequencies / (2.0 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (kept + (1.0 - kept) / scaling.factor) * frequencies


def rotation_table(
    rope: Rope, head_dim: int, positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of positions 0 .. positions - 1, each [positions, head_dim / 2].

    Angles are computed in float64: at position 4000 a float32 angle is already off by 2e-4.
    """
    angles = np.outer(np.arange(positions, dtype=np.float64), inverse_frequencies(rope, head_dim))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(
    x: NDArray[np.float32], cos: NDArray[np.float32], sin: NDArray[np.float32], layout: RopeLayout
) -> None:
    """Turns each pair of x [..., head_dim] in place; cos and sin broadcast to [..., head_dim / 2]."""
    half = x.shape[-1] // 2
    if layout is RopeLayout.HALF:
        first, second = x[..., :half], x[..., half:]
    else:
        first, second = x[..., 0::2], x[..., 1::2]
    turned = first * cos - second * sin
    second[...] = second * cos + first * sin
    first[...] = turned
