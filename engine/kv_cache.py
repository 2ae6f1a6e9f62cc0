"""How keys and values are kept, and how FP8 rounds them, for the reference and all backends.

A key or value in FP8 is the E4M3 number nearest to what the layer computed in FP32 (engine.e4m3 says by which
rule). There is no scale: docs/decisions/fp8-cache.md says what one would gain.

A step of E4M3 is a sixteenth of a number, and two computations of one key that differ in the last bit of FP32
may fall to either side of it. What they lead to differs by as much as the rounding itself, so `settle` takes
another one's side where both are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.e4m3 import quantise
from engine.errors import BackendUnavailable

Array = NDArray[np.float32]

OPTION = "cache"
"""The option of every backend that names a CacheFormat."""
NOISE = 1e-2
"""How far a backend's key or value may be from the reference's before it is rounded, as a share of the root
mean square of its head: as far as its logits may be (engine.measuring.measurement.LOGIT_LIMIT)."""


class CacheFormat(StrEnum):
    """How a backend keeps keys and values. FP16 is what the kernels do; NumPy then keeps FP32."""

    FP16 = "fp16"
    FP8 = "fp8"

    @property
    def bytes_each(self) -> int:
        """Of a number."""
        return 2 if self is CacheFormat.FP16 else 1


class KeysAndValues(NamedTuple):
    """What a cache holds of a sequence: both [layers, KV heads, positions, head_dim]."""

    keys: Array
    values: Array


def settle(numbers: Array, claimed: Array) -> Array:
    """`numbers` [.., head_dim] in E4M3, as `claimed` has them where that is right as well.

    Right is what some number would be rounded to that is nearer than NOISE. Elsewhere it is `quantise`.
    """
    noise = np.float32(NOISE) * np.sqrt(np.mean(np.square(numbers), axis=-1, keepdims=True))
    is_right = (quantise(numbers - noise) <= claimed) & (claimed <= quantise(numbers + noise))
    return np.where(is_right, claimed, quantise(numbers))


def format_of(options: Mapping[str, Any]) -> CacheFormat:
    """What a backend's options ask for: FP16 if nothing. Raises BackendUnavailable for another name."""
    asked = options.get(OPTION, CacheFormat.FP16)
    if asked not in tuple(CacheFormat):
        raise BackendUnavailable(f"{OPTION} is {asked!r}; allowed are {', '.join(CacheFormat)}")
    return CacheFormat(asked)


def kept_format(facts: Mapping[str, Any]) -> CacheFormat:
    """How an open backend keeps them, as its facts say; one that does not say it keeps FP16."""
    return CacheFormat(facts.get(OPTION, CacheFormat.FP16))
