"""A benchmark point: what is measured, what a model allows, and the prompts of the protocol (bench.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from engine.backends.base import Backend, Loaded, TraceRange
from engine.errors import RequestError
from engine.models.config import ModelConfig
from engine.sampling import SamplingParams

_APART = 16
"""Tokens between the beginnings of two streams' prompts."""
_LEAST_BLOCK = 12
"""Prompt tokens that a backend reads between two tokens of the other streams, at least."""

_TEXT = '''\
def merge(left, right):
    """Merges two sorted lists into one sorted list."""
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


class Stack:
    """Last in, first out."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()


'''
"""The prompt, repeated as often as a context needs it. Changing it changes the protocol."""


class Tokenizes(Protocol):
    @property
    def bos_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]: ...


class Model(Loaded, Protocol):
    """What a benchmark needs of a model (engine.models.catalogue.Model has it)."""

    @property
    def tokenizer(self) -> Tokenizes | None: ...

    @property
    def digest(self) -> str: ...


@dataclass(frozen=True)
class Point:
    """What to measure: `tokens` new tokens after a prompt of `context` tokens, `repeats` times."""

    context: int
    tokens: int
    repeats: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    trace: TraceRange | None = None
    warm: bool = False
    """Whether the prompt's keys and values are those of the run before, as far as the backend keeps them."""
    streams: int = 1
    """Requests side by side."""

    @property
    def room(self) -> int:
        """Tokens that a stream may generate. Several need more: the first goes on while others begin."""
        if self.streams == 1:
            return self.tokens
        return 2 * self.tokens + (self.streams - 1) * -(-self.context // _LEAST_BLOCK)


def check_point(config: ModelConfig, point: Point) -> None:
    """Raises RequestError if `point` cannot be measured on a model of this shape."""
    for name, value, least in (
        ("context", point.context, 1),
        ("tokens", point.tokens, 2),
        ("repeats", point.repeats, 1),
        ("streams", point.streams, 1),
    ):
        if value < least:
            raise RequestError(f"{name} is {value}; a benchmark point needs at least {least}")
    if point.context + point.room > config.context:
        many = "" if point.streams == 1 else f" for each of {point.streams} streams"
        raise RequestError(
            f"a context of {point.context} and {point.room} tokens{many} are {point.context + point.room}"
            f" positions; {config.name} has {config.context}: ask for less of either"
        )
    if point.trace is not None and not 0 <= point.trace.first < point.trace.last <= point.tokens:
        raise RequestError(
            f"the trace is of tokens {point.trace.first} to {point.trace.last}; it must be a range within"
            f" 0 to {point.tokens}"
        )


def require_rows(backend: Backend, model: str, streams: int) -> None:
    """Raises RequestError if the backend does not take so many requests to the model of that name at once."""
    if streams > backend.rows:
        at_once = "one at a time" if backend.rows == 1 else f"{backend.rows} at once"
        raise RequestError(
            f"streams is {streams}; {model} takes {at_once} on {backend.name}"
            f" x{len(backend.topology.devices)} as it is open: ask for no more"
        )


def prompt_tokens(model: Model, context: int) -> tuple[int, ...]:
    """The protocol's prompt of exactly `context` tokens."""
    if model.tokenizer is None:
        draw = np.random.Generator(np.random.Philox(0))
        return tuple(int(t) for t in draw.integers(0, model.config.vocab, context))
    start = [] if model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    copies = 1
    while len(tokens := start + model.tokenizer.encode(_TEXT * copies)) < context:
        copies *= 2
    return tuple(tokens[:context])


def prompts_of(model: Model, point: Point) -> list[tuple[int, ...]]:
    """The protocol's prompts of a point, one a stream."""
    text = prompt_tokens(model, point.context + (point.streams - 1) * _APART)
    return [text[start : start + point.context] for start in range(0, point.streams * _APART, _APART)]
