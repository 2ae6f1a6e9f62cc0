"""Errors of what a launch has left in the cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.kv_cache import KeysAndValues
from engine.models.config import ModelConfig
from engine.reference import Cache


def of_reference(cache: Cache, config: ModelConfig, positions: int) -> KeysAndValues:
    """The first `positions` of the reference's, its lanes' heads side by side."""
    rows = (config.layers, config.kv_heads, -1, config.head_dim)
    return KeysAndValues(*(t[:, :, :, :positions].reshape(rows) for t in (cache.keys, cache.values)))


def largest_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Over layers: the largest difference over the largest number."""
    assert np.isfinite(found).all()
    return max(float(np.abs(f - w).max() / np.abs(w).max()) for f, w in zip(found, wanted, strict=True))


def require_close(found: KeysAndValues, wanted: KeysAndValues, limit: float, what: str) -> None:
    keys, values = largest_error(found.keys, wanted.keys), largest_error(found.values, wanted.values)
    print(f"{what}: keys {keys:.1e}, values {values:.1e}")
    assert keys < limit
    assert values < limit
