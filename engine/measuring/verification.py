"""Whether the tokens that were timed are the model's tokens, by another computation of the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Backend, Loaded
from engine.measuring.measurement import Verified
from engine.reference import Reference

Rows = NDArray[np.float32]

TOKENS = 64
"""Generated tokens that are compared; a wrong phase shows in the first."""
STEPS = 16
"""Tokens that the reference computes one at a time where it is itself what was timed."""
REFERENCE_WORK = 3e11
"""Parameters x positions up to which the FP32 reference takes part: some ten seconds on two cores."""
ROUNDING = 1e-3
"""Two logits closer than this, as a share of the row's largest, may swap places by FP16 rounding."""
_CHUNK = 256
"""Prompt positions in one pass of the reference: bounds its attention scores, [heads, chunk, context]."""


def verify(backend: Backend, model: Loaded, prompt: Sequence[int], generated: Sequence[int]) -> Verified:
    """Compares greedily `generated` tokens with what the model says after the same tokens.

    Each token must be the largest logit of the row before it (or within ROUNDING of it). The rows come
    from the FP32 reference; where that would take minutes, from the backend's own pass over the whole
    sequence, which shares its arithmetic but not its path. `logit_rel_err` is the largest relative L2
    distance between two rows for the same position, None if only one computation took part. The numpy
    backend is the reference, so that there one token at a time is compared with whole sequences.
    """
    count = min(len(generated), TOKENS)
    sequence = [*prompt, *generated[: count - 1]]
    rows = backend.logits(sequence)[len(prompt) - 1 :]
    if model.config.parameters * len(sequence) > REFERENCE_WORK:
        return Verified("own full-sequence pass", agrees(rows, generated), None)
    reference = Reference(model.weights)
    if backend.name == "numpy":
        stepped = _one_at_a_time(reference, prompt, generated[: min(count, STEPS)])
        return Verified(
            "full-sequence pass", agrees(rows, generated), relative_error(rows[: len(stepped)], stepped)
        )
    expected = _whole(reference, prompt, generated[:count])
    return Verified("reference (NumPy, FP32)", agrees(expected, generated), relative_error(rows, expected))


def agrees(rows: Rows, tokens: Sequence[int]) -> bool:
    """Whether each token is its row's largest logit, or so near to it that rounding may decide.

    rows: [n, vocab]; only the first n tokens are looked at. A row that holds a NaN agrees with nothing.
    """
    chosen = rows[np.arange(len(rows)), np.asarray(tokens[: len(rows)])]
    gap = rows.max(axis=1) - chosen
    return bool((gap <= ROUNDING * np.abs(rows).max(axis=1)).all())


def relative_error(found: Rows, expected: Rows) -> float:
    """The largest |found - expected| / |expected| over rows, by L2 norm; inf if a row is not finite."""
    errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(errors.max()) if np.isfinite(errors).all() else float("inf")


def _whole(reference: Reference, prompt: Sequence[int], generated: Sequence[int]) -> Rows:
    """Logits before each generated token, in passes over many positions: [len(generated), vocab]."""
    cache = reference.new_cache(len(prompt) + len(generated))
    for start in range(0, len(prompt) - 1, _CHUNK):
        reference.forward(prompt[start : min(start + _CHUNK, len(prompt) - 1)], cache, logits="none")
    return reference.forward([prompt[-1], *generated[:-1]], cache)


def _one_at_a_time(reference: Reference, prompt: Sequence[int], generated: Sequence[int]) -> Rows:
    """The same rows, each from its own pass over one token."""
    cache = reference.new_cache(len(prompt) + len(generated))
    for start in range(0, len(prompt) - 1, _CHUNK):
        reference.forward(prompt[start : min(start + _CHUNK, len(prompt) - 1)], cache, logits="none")
    return np.concatenate([reference.forward([t], cache) for t in (prompt[-1], *generated[:-1])])
