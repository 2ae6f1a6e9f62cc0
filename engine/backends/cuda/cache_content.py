"""Keys and values out of the order in which the tensor cores take them (kernels/cuda/rows.cuh)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.constants import Layout
from engine.backends.cuda.driver import Device
from engine.e4m3 import E4M3_LEVELS
from engine.kv_cache import KeysAndValues
from engine.models.config import ModelConfig

_POSITIONS = 16
"""Of a block."""


def read_cache(device: Device, kept: int, layout: Layout, positions: int) -> KeysAndValues:
    """The first `positions` of the cache at `kept` on one GPU: no more of each head is brought from there."""
    heads = layout.config.layers * layout.config.kv_heads
    words_each = layout.kv_halves // heads
    used = -(-positions // _POSITIONS) * (words_each // (layout.capacity // _POSITIONS))
    words = [device.download(kept + 2 * head * words_each, (used,), np.uint16) for head in range(heads)]
    return keys_and_values(np.concatenate(words), layout.config, positions, fp8=layout.tuning.fp8_cache)


def keys_and_values(
    words: NDArray[np.uint16], config: ModelConfig, positions: int, *, fp8: bool = False
) -> KeysAndValues:
    """The first `positions` of one GPU's cache of 16-bit `words`; `config` is its part of the model.

    Of each head, `words` may leave out blocks behind those positions.
    """
    units = -(-config.head_dim // 16)
    used = -(-positions // _POSITIONS)
    block = 2 * units * 32 * 8 // (2 if fp8 else 1)
    words = np.ascontiguousarray(words.reshape(config.layers, config.kv_heads, -1, block)[:, :, :used])
    numbers = E4M3_LEVELS[words.view(np.uint8)] if fp8 else words.view(np.float16)
    blocks = numbers.reshape(config.layers, config.kv_heads, used, 2, units, 32, 8)
    p, d = np.arange(_POSITIONS)[:, np.newaxis], np.arange(config.head_dim)
    lane, place = (p & 7) * 4 + (d >> 2 & 3), ((d >> 1 & 1) * 2 + (p >> 3)) * 2 + (d & 1)
    keys = blocks[:, :, :, 0][:, :, :, d >> 4, lane, place]
    lane, place = (d & 7) * 4 + (p >> 1 & 3), ((p >> 3) * 2 + (d >> 3 & 1)) * 2 + (p & 1)
    values = blocks[:, :, :, 1][:, :, :, d >> 4, lane, place]
    rows = (config.layers, config.kv_heads, -1, config.head_dim)
    return KeysAndValues(*(t.reshape(rows)[:, :, :positions].astype(np.float32) for t in (keys, values)))
