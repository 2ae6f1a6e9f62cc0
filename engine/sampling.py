"""How the next token is chosen: the rule that every backend follows, in float32, over the vocabulary.

Order: repetition penalty, temperature, top-k, top-p, min-p, then one Gumbel-max draw whose random
numbers depend on the seed, the position and the token id alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError
from engine.philox import uniforms


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. The defaults are greedy.

    Order: repetition penalty (on every token id already in the sequence), temperature, top-k, top-p,
    min-p, then one draw. temperature 0 is greedy (lowest id wins a tie) and ignores the filters.
    Raises RequestError if a value is out of range.
    """

    temperature: float = 0.0
    """Below 1e-4 it becomes 0: logits divided by less would overflow float32."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    """64 bits, unsigned."""

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, float, float], ...] = (
            ("temperature", 0.0, 10.0),
            ("top_k", 0, 1 << 20),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.1, 10.0),
            ("seed", 0, 2**64 - 1),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise RequestError(f"{name} is {value}; allowed are {low:g} to {high:g}")
        if self.top_p == 0.0:
            raise RequestError("top_p is 0; it must be above 0 (1 keeps every token)")
        if self.temperature < 1e-4:
            object.__setattr__(self, "temperature", 0.0)


def choose(logits: NDArray[np.float32], params: SamplingParams, history: Sequence[int], position: int) -> int:
    """The id of the next token.

    `logits` [vocab]; `history` are the ids of the sequence so far, prompt included; `position` is the
    index that the new token will have in the sequence. Temperature 0 takes the largest logit; the
    lowest id wins a tie.
    """
    scores = penalised(logits, history, params.repetition_penalty)
    if params.temperature == 0:
        return int(np.argmax(scores))
    scores = scores / np.float32(params.temperature)
    kept = np.flatnonzero(kept_by_filters(scores, params))
    return int(kept[np.argmax(scores[kept] + gumbel(params.seed, position, kept))])


def penalised(logits: NDArray[np.float32], history: Sequence[int], penalty: float) -> NDArray[np.float32]:
    """Logits of the ids in `history` moved towards less likely: divided if positive, else multiplied.

    Keskar et al., "CTRL", 2019, section 4.1. Returns `logits` itself if there is nothing to do.
    """
    if penalty == 1.0 or not history:
        return logits
    seen = np.unique(np.asarray(history, np.int64))
    factor = np.float32(penalty)
    moved = logits.copy()
    moved[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    return moved


def kept_by_filters(scores: NDArray[np.float32], params: SamplingParams) -> NDArray[np.bool_]:
    """Which tokens may be drawn, [vocab]. Each filter is a threshold, so that equals share one fate.

    top-k keeps what is no less than the k-th largest score. top-p (Holtzman et al. 2019) walks down
    the softmax of what is left while the probability before a token is below top_p. min-p keeps what
    is at least min_p times as probable as the best.
    """
    kept = np.ones(scores.shape, np.bool_)
    vocab = len(scores)
    if 0 < params.top_k < vocab:
        kept = scores >= np.partition(scores, vocab - params.top_k)[vocab - params.top_k]
    weights = np.exp(scores - scores.max(), dtype=np.float32)
    if params.top_p < 1.0:
        kept &= weights >= _nucleus_threshold(weights[kept], params.top_p)
    if params.min_p > 0.0:
        kept &= weights >= np.float32(params.min_p)
    return kept


def _nucleus_threshold(weights: NDArray[np.float32], top_p: float) -> np.float32:
    """The smallest of the unnormalised probabilities `weights` that top-p keeps."""
    descending = np.sort(weights)[::-1]
    cumulative = np.cumsum(descending / weights.sum(dtype=np.float32), dtype=np.float32)
    count = 1 + np.count_nonzero(cumulative[:-1] < np.float32(top_p))
    return np.float32(descending[count - 1])


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Standard Gumbel noise for ascending token ids: argmax of score + noise is a draw from softmax."""
    return -np.log(-np.log(uniforms(seed, position, ids)))
