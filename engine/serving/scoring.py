"""The log-probabilities of a finished answer, from one more pass of the model over it.

The launches give tokens alone: their logits never leave the device. So whoever asks for log-probabilities
pays for scoring prompt and answer once more, at the speed of a prefill, after the last token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Backend
from engine.errors import RequestError
from engine.measuring.scoring import log_softmax
from engine.models.tokenizer import Tokenizer
from engine.serving.messages import LEAST_LOGPROB, Candidate, Scored

LOGITS_BYTES = 1 << 29
"""The most memory that the logits of one answer may take: 4 bytes for each token and vocabulary entry."""
FRAME_TOKENS = 64
"""Scored tokens in one frame, and rows in one step of the arithmetic."""


def check_room(backend: Backend, limit: int) -> None:
    """Raises RequestError, before anything is generated, if an answer of `limit` tokens cannot be scored."""
    most = LOGITS_BYTES // (4 * backend.config.vocab)
    if limit > most:
        raise RequestError(
            f"logprobs are given for answers of at most {most:,} tokens; this one may have {limit:,}:"
            " lower max_tokens"
        )
    backend.logits((0,))  # a backend without logits says so now


def scores(
    backend: Backend,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    answer: Sequence[int],
    alternatives: int,
    first: int = 0,
) -> Iterator[Scored]:
    """The scores of `answer` from its token `first` on, each with so many alternatives.

    Raises BackendFailure, or RequestError if the backend computes no logits.
    """
    if first >= len(answer):
        return
    rows = backend.logits([*prompt, *answer[:-1]], len(prompt) - 1)
    for start in range(first, len(answer), FRAME_TOKENS):
        chosen = np.asarray(answer[start : start + FRAME_TOKENS])
        logprobs = log_softmax(rows[start : start + len(chosen)])
        yield Scored(
            start,
            tuple(_candidate(tokenizer, row, token) for row, token in zip(logprobs, chosen, strict=True)),
            tuple(
                tuple(_candidate(tokenizer, row, token) for token in _likeliest(row, alternatives))
                for row in logprobs
            ),
        )


def _likeliest(row: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The ids of the `count` largest entries, largest first; of equals the lower id."""
    count = min(count, len(row))
    if count == 0:
        return np.empty(0, np.int64)
    threshold = np.partition(row, -count)[-count]
    ids = np.flatnonzero(row >= threshold)
    return ids[np.argsort(-row[ids], kind="stable")][:count]


def _candidate(tokenizer: Tokenizer, row: NDArray[np.float64], token: int) -> Candidate:
    identity = int(token)
    logprob = max(float(row[identity]), LEAST_LOGPROB)
    return Candidate(tokenizer.label(identity), tuple(tokenizer.token_bytes(identity)), logprob)
