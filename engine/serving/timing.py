"""When the tokens of a generation came, and what that says of its speed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.backends.base import Outcome, Token
from engine.serving.continuation import Published
from engine.timings import Timings, decode_speed


class Clock:
    """Runs from a worker's first look at a request. Tokens carry their own time, by the launch's clock.

    What other workers `published` counts too, but for the pauses between them. `ttft_ms` is known already
    if one of them got to the first token.
    """

    def __init__(self, published: Published, queue_ms: float, ttft_ms: float | None) -> None:
        self.queue_ms = queue_ms if published.queue_ms is None else published.queue_ms
        self.tokenize_ms = 0.0
        self._prefill_ms = 0.0
        self._cached_tokens = 0
        self._published = published
        self._begun = time.monotonic()
        self._ttft_ms = ttft_ms
        self._first: Token | None = None
        self._last: Token | None = None
        self._tokens = 0

    @property
    def started(self) -> bool:
        """Whether this launch has had a token."""
        return self._first is not None

    @property
    def ttft_ms(self) -> float:
        """From the request's creation to its first token; 0 before that."""
        return self._ttft_ms or 0.0

    def note_arrival(self, token: Token) -> None:
        """`token` is the first of those that have come just now."""
        if self._first is None:
            self._first = token
        if self._ttft_ms is None:
            self._ttft_ms = self.queue_ms + (time.monotonic() - self._begun) * 1e3

    def count(self, tokens: Sequence[Token]) -> None:
        """So many more belong to the generation."""
        self._tokens += len(tokens)
        self._last = tokens[-1]

    @property
    def decode_us(self) -> int:
        """From the first to the last token of this launch."""
        if self._first is None or self._last is None:
            return 0
        return (self._last.t_ns - self._first.t_ns) // 1000

    def seconds_for(self, tokens: int) -> float:
        """How long so many more will probably take; infinite if nothing is known yet."""
        if self._tokens < 2:
            return float("inf")
        return tokens * self.decode_us / 1e6 / (self._tokens - 1)

    @contextmanager
    def time_tokenizer(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.tokenize_ms = (time.monotonic() - begun) * 1e3

    def note_outcome(self, outcome: Outcome) -> None:
        """What the launch says of itself."""
        self._prefill_ms = outcome.prefill_ns / 1e6
        self._cached_tokens = outcome.cached_tokens

    def timings(self, prompt_tokens: int, completion_tokens: int, publish_ms: float = 0.0) -> Timings:
        decode_us = self._published.decode_us + self.decode_us
        gaps = self._published.gaps + max(0, self._tokens - 1)
        return Timings(
            queue_ms=round(self.queue_ms, 3),
            prefill_ms=round(self._prefill_ms, 3),
            ttft_ms=round(self.ttft_ms, 3),
            decode_ms=decode_us / 1e3,
            decode_tok_s=round(decode_speed(gaps, decode_us * 1e3), 2),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=min(self._cached_tokens, prompt_tokens),
            tokenize_ms=round(self.tokenize_ms, 3),
            publish_ms=round(publish_ms, 3),
        )
