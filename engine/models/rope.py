"""Rotary positions (Su et al. 2021): which pairs turn, how fast, and how longer contexts stretch them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class RopeLayout(StrEnum):
    """Which pairs of a head's elements one rotation turns."""

    HALF = "half"
    """Element j with element j + head_dim/2 (Hugging Face Llama)."""
    INTERLEAVED = "interleaved"
    """Element 2j with element 2j + 1 (Meta's Llama, GGUF, Laneformer)."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every wavelength `factor` times as long (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths `factor` times as long, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): pairs that turn less than `beta_slow` times in the original context are
    stretched, those that turn more than `beta_fast` times are kept, those between are blended by index.

    `amplitude` multiplies the rotated queries and keys; `truncate` rounds the bounds to whole indices.
    """

    factor: float
    original_context: int
    amplitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Every pair's wavelength times its own factor (Phi's longrope); `amplitude` as in YaRN."""

    factors: tuple[float, ...]
    amplitude: float


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FactorScaling


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float = 10000.0
    layout: RopeLayout = RopeLayout.HALF
    scaling: RopeScaling | None = None
    turning: int = 0
    """How many pairs turn, from the first on; 0 means all of the head's. The others stay as they are."""

    @property
    def amplitude(self) -> float:
        """What the rotated elements are multiplied by."""
        stretched = isinstance(self.scaling, YarnScaling | FactorScaling)
        return self.scaling.amplitude if stretched else 1.0  # type: ignore[union-attr]


def inverse_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Radians a position for each of the head_dim / 2 pairs; 0 for pairs that do not turn."""
    turning = rope.turning or head_dim // 2
    frequencies: NDArray[np.float64] = np.zeros(head_dim // 2)
    frequencies[:turning] = _scale(rope.theta ** -(np.arange(turning) / turning), rope)
    return frequencies


def pair_amplitudes(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """What each of the head_dim / 2 pairs is multiplied by when it turns; 1 for pairs that do not turn."""
    amplitudes: NDArray[np.float64] = np.ones(head_dim // 2)
    amplitudes[: rope.turning or None] = rope.amplitude
    return amplitudes


def _scale(frequencies: NDArray[np.float64], rope: Rope) -> NDArray[np.float64]:
    match rope.scaling:
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling():
            return _llama3(frequencies, rope.scaling)
        case YarnScaling():
            return _yarn(frequencies, rope.theta, rope.scaling)
        case FactorScaling(factors):
            return frequencies / np.array(factors, np.float64)
        case None:
            return frequencies


def _llama3(frequencies: NDArray[np.float64], scaling: Llama3Scaling) -> NDArray[np.float64]:
    turns = scaling.original_context * frequencies / (2.0 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    scaled: NDArray[np.float64] = (kept + (1.0 - kept) / scaling.factor) * frequencies
    return scaled


def _yarn(frequencies: NDArray[np.float64], theta: float, scaling: YarnScaling) -> NDArray[np.float64]:
    """Source: the paper's section 3.2 and 3.3, with the bounds in pairs of this head."""
    pairs = len(frequencies)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(scaling.original_context / (times * 2.0 * math.pi)) / math.log(theta)

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, 2.0 * pairs - 1.0)
    width = high - low if high != low else 0.001
    stretched = np.clip((np.arange(pairs) - low) / width, 0.0, 1.0)
    scaled: NDArray[np.float64] = frequencies * (1.0 - stretched) + frequencies / scaling.factor * stretched
    return scaled


def rotation_table(
    rope: Rope, head_dim: int, positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of positions 0 .. positions - 1, each [positions, head_dim / 2], times the amplitude.

    Angles are computed in float64: at position 4000 a float32 angle is already off by 2e-4.
    """
    angles = np.outer(np.arange(positions, dtype=np.float64), inverse_frequencies(rope, head_dim))
    factors = pair_amplitudes(rope, head_dim)
    return (np.cos(angles) * factors).astype(np.float32), (np.sin(angles) * factors).astype(np.float32)


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
