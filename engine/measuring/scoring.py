"""How likely a model finds tokens: the natural logarithm of each one's probability after those before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Backend
from engine.progress import OnProgress, Progress, ignore_progress


def log_likelihoods(
    backend: Backend,
    tokens: Sequence[int],
    window: int,
    stride: int,
    on_progress: OnProgress = ignore_progress,
) -> list[float]:
    """ln p(token | up to `window` - 1 tokens before it), for all but the first token.

    Every token but those of the first window sees at least window - stride tokens of context.
    `on_progress` is called after each pass.
    """
    found: list[float] = []
    end = 1
    while end < len(tokens):
        first_pass = end == 1
        start = 0 if first_pass else max(0, end - (window - stride))
        scored_from = end
        end = min(len(tokens), start + window)
        rows = log_softmax(backend.logits(tokens[start : end - 1], scored_from - start - 1))
        found.extend(float(row[token]) for row, token in zip(rows, tokens[scored_from:end], strict=True))
        on_progress(Progress(end, len(tokens), "tokens"))
    return found


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """ln softmax of each row, in double precision: [n, vocab] to the same."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows
