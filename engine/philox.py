"""Philox4x32-10: random numbers that are a function of (key, counter), with no state to carry.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A draw depends only
on where it is used, so every backend, core and restarted worker gets the same one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Four random words for each counter: [n, 4] to [n, 4]; both halves of `key` are 32-bit."""
    a, b, c, d = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> _SHIFT) ^ b ^ np.uint64(k0),
            second & _LOW,
            (first >> _SHIFT) ^ d ^ np.uint64(k1),
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((a, b, c, d), axis=1).astype(np.uint32)


def uniforms(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """One number in (0, 1) for each token id, for the token that will stand at `position`.

    `ids` must ascend. Key: the halves of the 64-bit seed. Counter: (id >> 2, position, 0, 0); the
    id's low two bits choose the word. The top 23 bits become the middle of one of 2^23 equal cells,
    which float32 holds exactly, so that neither 0 nor 1 occurs.
    """
    block = ids >> 2
    is_new = np.diff(block, prepend=-1) != 0
    counter = np.zeros((np.count_nonzero(is_new), 4), np.uint32)
    counter[:, 0] = block[is_new]
    counter[:, 1] = position
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    chosen = words[np.cumsum(is_new) - 1, ids & 3]
    cell: NDArray[np.float32] = (chosen >> np.uint32(9)).astype(np.float32)
    return (cell + np.float32(0.5)) * np.float32(2.0**-23)
