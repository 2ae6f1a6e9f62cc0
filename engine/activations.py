"""What the two halves of an MLP become before its last matrix, in NumPy and FP32."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.models.config import Activation

Array = NDArray[np.float32]

SWIGLU_ALPHA = 1.702
"""Slope of the clamped SwiGLU's sigmoid: x * sigmoid(1.702 x) is nearly GELU (Hendrycks and Gimpel 2016)."""

_CACHED = 1 << 17
"""Numbers that are worked on at a time: what several passes over them find in a core's own cache."""


def gate_halves(both: Array, activation: Activation, limit: float = 0.0) -> Array:
    """activation(gate) * up for `both` [..., 2 * F], the gates first: [..., F], in the memory of `both`.

    `limit` is where the clamped SwiGLU clamps.
    """
    half = both.shape[-1] // 2
    rows = both.reshape(-1, 2 * half, copy=False)  # a copy would not be what the caller holds
    block = max(1, _CACHED // rows.shape[1])
    for start in range(0, len(rows), block):
        _gate_rows(rows[start : start + block], activation, limit)
    return both[..., :half]


def _gate_rows(both: Array, activation: Activation, limit: float) -> None:
    """The same for rows [n, 2 * F], in place."""
    half = both.shape[1] // 2
    gate, up = both[:, :half], both[:, half:]
    match activation:
        case Activation.SILU:
            _multiply_sigmoid(gate, 1.0)
        case Activation.GELU_TANH:
            _gelu_tanh(gate)
        case Activation.CLAMPED_SWIGLU:
            np.minimum(gate, np.float32(limit), out=gate)
            np.clip(up, np.float32(-limit), np.float32(limit), out=up)
            up += np.float32(1.0)
            _multiply_sigmoid(gate, SWIGLU_ALPHA)
    gate *= up


def _multiply_sigmoid(gate: Array, slope: float) -> None:
    """x / (1 + exp(-slope * x)), in place."""
    with np.errstate(over="ignore"):  # exp is inf for a very negative gate: the quotient is 0
        denominator: Array = np.exp(np.float32(-slope) * gate)
    denominator += np.float32(1.0)
    gate /= denominator


def _gelu_tanh(gate: Array) -> None:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), in place (Hendrycks and Gimpel 2016)."""
    inner = gate * gate * gate
    inner *= np.float32(0.044715)
    inner += gate
    inner *= np.float32(math.sqrt(2.0 / math.pi))
    np.tanh(inner, out=inner)
    inner += np.float32(1.0)
    inner *= np.float32(0.5)
    gate *= inner
