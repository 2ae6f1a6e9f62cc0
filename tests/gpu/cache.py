"""Keys and values out of the order in which the tensor cores take them (rows.cuh), and their errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig
from engine.reference import Cache


@dataclass(frozen=True)
class KeysAndValues:
    """What a launch has left in the cache: [layers, KV heads, positions, head_dim] each."""

    keys: NDArray[np.float32]
    values: NDArray[np.float32]


def keys_and_values(words: NDArray[np.uint16], config: ModelConfig, positions: int) -> KeysAndValues:
    """The first `positions` of a whole cache of 16-bit `words`."""
    units = -(-config.head_dim // 16)
    blocks = words.view(np.float16).reshape(config.layers, config.kv_heads, -1, 2, units, 32, 8)
    p, d = np.arange(16)[:, np.newaxis], np.arange(config.head_dim)
    lane, half = (p & 7) * 4 + (d >> 2 & 3), ((d >> 1 & 1) * 2 + (p >> 3)) * 2 + (d & 1)
    keys = blocks[:, :, :, 0][:, :, :, d >> 4, lane, half]
    lane, half = (d & 7) * 4 + (p >> 1 & 3), ((p >> 3) * 2 + (d >> 3 & 1)) * 2 + (p & 1)
    values = blocks[:, :, :, 1][:, :, :, d >> 4, lane, half]
    rows = (config.layers, config.kv_heads, -1, config.head_dim)
    return KeysAndValues(*(t.reshape(rows)[:, :, :positions].astype(np.float32) for t in (keys, values)))


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
