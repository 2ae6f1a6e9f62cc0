"""Logits after a prompt: what prefill and decode's first pass give together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Backend


def last_logits(backend: Backend, tokens: Sequence[int]) -> NDArray[np.float32]:
    """After the last of `tokens`, the others having gone as a prompt's do: [vocab]."""
    return backend.logits(tokens, len(tokens) - 1)[0]
