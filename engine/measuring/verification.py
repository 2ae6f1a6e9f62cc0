"""Whether what was timed computes the model: its tokens and its logits, by another computation of the same.

That computation is the FP32 reference (engine.reference), from the weights' source and never from what the
backend packed. It holds one layer at a time, so that no FP32 copy of a model is ever in memory. Its matrix
products run on the cores, or on a GPU through PyTorch where they are too much for the cores and both are
there. Where they are too much for either, the reference takes the first positions only, which pass through
every matrix, and the backend's own pass over the whole sequence is compared with the tokens: `PARTIAL`.

A backend that rounds keys and values to FP8 is compared with a reference that does the same
(engine.kv_cache). Each of its passes, over a sequence and token by token, is held against a pass of the
reference that takes the backend's side where a key or value lies between two steps, and its own elsewhere:
without that, one such choice in the first layer moves the last one's logits by as much as the format does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Backend, Job, Loaded, ShowsCache
from engine.errors import BackendFailure
from engine.kv_cache import CacheFormat, kept_format
from engine.measuring.bandwidth import usable_cores
from engine.measuring.measurement import FULL, LOGIT_LIMIT, PARTIAL, Verified
from engine.measuring.torch_products import TorchProducts, gpu_products
from engine.models.checkpoints.encodings import widen
from engine.models.config import ModelConfig, matrix_shapes
from engine.models.storage import Storage
from engine.models.weights import DType, RandomWeights, Weights, cast_tensor
from engine.progress import OnProgress, Progress, ignore_progress
from engine.reference import Mark, NumpyProducts, Products, Reference

Rows = NDArray[np.float32]

TOKENS = 64
"""Generated tokens that are compared where all of them are too many; a wrong phase shows in the first."""
PROMPT_ROWS = 256
"""Of a prompt's logits, those of its last tokens that are compared: a row has a number for each entry of the
vocabulary, and those of 32,000 tokens would take 16 GB twice. The tokens before act on these."""
POSITIONS = 16
"""Positions that the reference computes where a whole sequence is too much for it."""
CORE_WORK = 1.5e11
"""Parameters that a token meets x positions for each core up to which NumPy takes part: some ten seconds."""
GPU_WORK = 1e14
"""The same for PyTorch on a GPU."""
ROUNDING = 1e-3
"""Two logits closer than this, as a share of the row's largest, may swap places by FP16 rounding."""
_BLOCK = 256
"""Rows that are compared at a time."""


def verify(
    backend: Backend,
    model: Loaded,
    prompt: Sequence[int],
    generated: Sequence[int],
    *,
    cache_salt: str = "",
    on_progress: OnProgress = ignore_progress,
) -> Verified:
    """Compares greedily `generated` tokens, and the backend's logits, with the reference's.

    Each token must be the largest logit of the reference's row before it, or so near to it that rounding
    may decide (`agrees`). `logit_rel_err` is the largest relative distance of two rows for the same
    position, those of the prompt's last PROMPT_ROWS included (`relative_error`); LOGIT_LIMIT is allowed.
    `cache_salt` is that of the job that generated them. `on_progress` is told of each layer of the reference;
    what it raises ends the comparison. Raises BackendFailure if a logit of the backend is not finite.
    """
    fp8 = kept_format(backend.facts) is CacheFormat.FP8
    chosen = _comparison(model.config, len(prompt), len(generated), passes=2 if fp8 else 1)
    mark = _telling(model.config, on_progress)
    if fp8:
        return _verify_fp8(
            cast("ShowsCache", backend),
            model,
            chosen,
            Job(tuple(prompt), len(generated), cache_salt=cache_salt),
            generated,
            mark,
        )
    sequence = [*prompt, *generated[: chosen.tokens - 1]]
    first = _first_compared(prompt)
    rows = _finite(backend.logits(sequence, first))
    weights = kept_weights(backend, chosen.generated_there(model.weights))
    reference = Reference(weights, stream=True, products=chosen.products)
    if chosen.kind == FULL:
        expected = reference.forward(
            sequence, reference.new_cache(len(sequence)), scored_from=first, mark=mark
        )
        answer = len(prompt) - 1 - first
        equal = agrees(expected[answer:], generated, rows[answer:])
        error = relative_error(rows, expected)
        against = f"reference ({chosen.library})"
    else:
        beginning = sequence[:POSITIONS]
        expected = reference.forward(beginning, reference.new_cache(len(beginning)), mark=mark)
        equal = agrees(rows[len(prompt) - 1 - first :], generated)
        error = relative_error(_finite(backend.logits(beginning)), expected)
        against = (
            f"reference ({chosen.library}) at {len(beginning)} positions, tokens by own full-sequence pass"
        )
    return Verified(against, equal, error, chosen.kind, LOGIT_LIMIT, chosen.tokens)


def _verify_fp8(
    backend: ShowsCache,
    model: Loaded,
    chosen: _Comparison,
    job: Job,
    generated: Sequence[int],
    mark: Mark,
) -> Verified:
    """The same for keys and values in FP8. Partly: of a short prompt's tokens, computed for this."""
    again, by_launch = backend.tokens_and_cache(job)
    repeated = again == list(generated)
    against = f"reference ({chosen.library}; keys and values in FP8)"
    if chosen.kind == PARTIAL:
        job = Job(job.tokens[: POSITIONS // 2], POSITIONS - len(job.tokens[: POSITIONS // 2]))
        again, by_launch = backend.tokens_and_cache(job)
        against += f" of a prompt of {len(job.tokens)} tokens and its own {len(again)}"
    tokens = again[: chosen.tokens]
    sequence = [*job.tokens, *tokens[:-1]]
    first = _first_compared(job.tokens)
    logits, by_pass = backend.logits_and_cache(sequence, first)
    found = _finite(logits)
    weights = kept_weights(backend, chosen.generated_there(model.weights))
    reference = Reference(weights, stream=True, products=chosen.products, cache=CacheFormat.FP8)
    expected, decoded = (
        reference.forward(sequence, reference.new_cache(len(sequence), claims), scored_from=first, mark=mark)
        for claims in (by_pass, by_launch)
    )
    from_here = slice(len(job.tokens) - 1 - first, None)
    equal = agrees(decoded[from_here], tokens, (decoded + found - expected)[from_here])
    error = relative_error(found, expected)
    return Verified(against, repeated and equal, error, chosen.kind, LOGIT_LIMIT, len(tokens))


def _telling(config: ModelConfig, on_progress: OnProgress) -> Mark:
    """Tells of each layer that a pass of the reference has ended."""

    def mark(phase: str, layer: int) -> None:
        if phase in ("down", "experts"):
            on_progress(Progress(layer + 1, config.layers, "layers", "comparing with the reference"))

    return mark


def _first_compared(prompt: Sequence[int]) -> int:
    """Index of the first token whose logits are compared."""
    return max(0, len(prompt) - PROMPT_ROWS)


@dataclass(frozen=True)
class _Comparison:
    kind: str
    tokens: int
    library: str
    products: Products

    def generated_there(self, weights: Weights) -> Weights:
        """Random ones are generated where the products are, on a GPU if that is one; others stay."""
        if isinstance(weights, RandomWeights) and isinstance(self.products, TorchProducts):
            return weights.with_generator(self.products.random_numbers)
        return weights


def _comparison(config: ModelConfig, prompt: int, generated: int, passes: int) -> _Comparison:
    """The most that this machine can compare in some ten seconds: all tokens if it can, then fewer.

    The reference goes over them `passes` times.
    """
    cores, gpu = CORE_WORK * usable_cores(), None
    for tokens in dict.fromkeys((generated, min(generated, TOKENS))):
        work = float(config.active_parameters) * (prompt + tokens) * passes
        if work <= cores:
            return _Comparison(FULL, tokens, "NumPy, FP32", NumpyProducts())
        gpu = gpu or gpu_products()
        if gpu is not None and work <= GPU_WORK:
            return _Comparison(FULL, tokens, "PyTorch on the GPU, FP32", gpu)
    return _Comparison(PARTIAL, min(generated, TOKENS), "NumPy, FP32", NumpyProducts())


def kept_weights(backend: Backend, weights: Weights) -> Weights:
    """`weights` as precise as the backend keeps them."""
    return KeptMatrices(weights, backend.storage)


class KeptMatrices:
    """Weights whose matrices are rounded to 16 bits where `storage` says so; norms and biases are not."""

    def __init__(self, weights: Weights, storage: Callable[[str], Storage | None]) -> None:
        self.config = weights.config
        self.native: DType = weights.native
        self._weights, self._storage = weights, storage
        self._matrices = set(matrix_shapes(weights.config))

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        kept = self._storage(name) if name in self._matrices else None
        if kept is None or kept.is_packed:
            return self._weights.get(name, dtype)
        half: DType = "bf16" if kept is Storage.BF16 else "f16"
        rounded = self._weights.get(name, half)
        return rounded if dtype == half else cast_tensor(widen(rounded, half), dtype)


def _finite(rows: Rows) -> Rows:
    """Raises BackendFailure unless every logit is a finite number."""
    wrong = ~np.isfinite(rows).all(axis=1)
    if wrong.any():
        raise BackendFailure(
            f"{int(wrong.sum())} of {len(rows)} rows of the backend's logits hold NaN or infinity;"
            " a run that does not compute numbers is not measured"
        )
    return rows


def agrees(rows: Rows, tokens: Sequence[int], found: Rows | None = None) -> bool:
    """Whether each token is its row's largest logit, or so near to it that rounding may decide.

    rows: [n, vocab]; only the first n tokens are looked at. Near is within ROUNDING of the largest, or
    within what the rows that the backend `found` differ anyway: two logits apart by less than twice the
    largest difference may swap places. A row that holds a NaN agrees with nothing.
    """
    chosen = rows[np.arange(len(rows)), np.asarray(tokens[: len(rows)])]
    gap = rows.max(axis=1) - chosen
    near = ROUNDING * np.abs(rows).max(axis=1)
    if found is not None:
        near = np.maximum(near, 2.0 * np.abs(found - rows).max(axis=1))
    return bool((gap <= near).all())


def relative_error(found: Rows, expected: Rows) -> float:
    """How far `found` is from `expected`, the worst row's; inf if a row is not finite.

    The larger of two: |found - expected| / |expected| by L2 norm, which sees an error that is spread over
    the vocabulary, and largest difference / largest |expected|, which sees two rows of the head swapped.
    """
    worst = 0.0
    for start in range(0, len(found), _BLOCK):
        right = expected[start : start + _BLOCK]
        difference = found[start : start + _BLOCK] - right
        if not np.isfinite(difference).all():
            return float("inf")
        spread = np.linalg.norm(difference, axis=1) / np.linalg.norm(right, axis=1)
        single = np.abs(difference).max(axis=1) / np.abs(right).max(axis=1)
        worst = max(worst, float(spread.max()), float(single.max()))
    return worst
