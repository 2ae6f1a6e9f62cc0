"""The log-probabilities of a finished answer, from one more pass of the model over it.

The launches give tokens alone: their logits never leave the device. So whoever asks for log-probabilities
pays for reading prompt and answer once more after the last token: the prompt at the speed of a prefill, the
answer at that of a prefill on NumPy and the CPU, and at that of decode on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Backend, OnStep, ignore_step
from engine.errors import NoRoom, RequestError
from engine.measuring.scoring import log_softmax
from engine.models.tokenizer import Tokenizer
from engine.serving.messages import LEAST_LOGPROB, Candidate, Scored

LOGITS_BYTES = 1 << 29
"""The most memory that the logits of one answer may take: 4 bytes for each token and vocabulary entry."""
MOST_TOKENS = 8192
"""Prompt and answer together: read once more for one request, with a cache beside the worker's budget."""
FRAME_TOKENS = 64
"""Scored tokens in one frame, and rows in one step of the arithmetic."""


def check_room(backend: Backend, prompt: int, limit: int) -> None:
    """Raises RequestError, before anything is generated, if what may be answered cannot be scored.

    That is up to `limit` tokens after a prompt of `prompt` tokens.
    """
    most = min(LOGITS_BYTES // (4 * backend.config.vocab), MOST_TOKENS - prompt)
    if most < 1:
        raise RequestError(
            f"logprobs are given for at most {MOST_TOKENS:,} tokens, prompt and answer together; this prompt"
            f" has {prompt:,}: shorten it, or leave logprobs out"
        )
    if limit > most:
        raise RequestError(
            f"logprobs are given for answers of at most {most:,} tokens after this prompt; this one may have"
            f" {limit:,}: set max_tokens to {most:,} or less"
        )
    with suppress(NoRoom):
        backend.logits((0,))  # a backend without logits says so now


def scores(
    backend: Backend,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    answer: Sequence[int],
    alternatives: int,
    first: int = 0,
    on_step: OnStep = ignore_step,
) -> Iterator[Scored]:
    """The scores of `answer` from its token `first` on, each with so many alternatives.

    `on_step` is called while the model reads; what it raises ends that. Raises BackendFailure, NoRoom, or
    RequestError if the backend computes no logits.
    """
    if first >= len(answer):
        return
    rows = backend.logits([*prompt, *answer[:-1]], len(prompt) - 1 + first, on_step)
    for start in range(first, len(answer), FRAME_TOKENS):
        chosen = np.asarray(answer[start : start + FRAME_TOKENS])
        logprobs = log_softmax(rows[start - first : start - first + len(chosen)])
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
