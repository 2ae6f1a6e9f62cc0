"""Decoding in turn with the engines of two trees, and what may be said of their speeds and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from engine.measuring.statistics import LEAST_SAMPLES, median, median_interval

LIMIT = 0.005
"""By how much decode may become slower (CONTRIBUTING.md)."""
WARM_UP_S = 3.0
"""Of each tree before its first pair, as of a measured point (engine/measuring/bench.py)."""


class Asked(Protocol):
    """A tree.Tree."""

    name: str

    def ask(self, do: str, **what: object) -> Any: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One model after one context, by both trees: speeds in tokens a second, those of a pair at one index."""

    model: str
    context: int
    tokens: int
    before: list[float]
    after: list[float]
    differ_from: int | None = None
    """The first token that is not the same in both; None if all are."""

    @property
    def ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def ratio(self) -> float:
        """Of the medians: above 1 the newer tree is faster."""
        return median(self.after) / median(self.before)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the median of the paired ratios, 95 %; their range if they are fewer than 5."""
        return median_interval(self.ratios)

    @property
    def is_slower(self) -> bool:
        """Whether all of the interval is slower than LIMIT allows; too few pairs say nothing."""
        return len(self.before) >= LEAST_SAMPLES and self.interval[1] < 1 - LIMIT

    @property
    def words(self) -> str:
        return "the same" if self.differ_from is None else f"differ from token {self.differ_from} on"

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "context": self.context,
            "tokens": self.tokens,
            "n": len(self.before),
            "before_tok_s": _spread(self.before),
            "after_tok_s": _spread(self.after),
            "ratio": round(self.ratio, 5),
            "ratio_ci95": [round(end, 5) for end in self.interval],
            "ratios": [round(ratio, 5) for ratio in self.ratios],
            "same_tokens": self.differ_from is None,
            "differ_from": self.differ_from,
        }


def _spread(speeds: Sequence[float]) -> dict[str, Any]:
    return {
        "median": round(median(speeds), 2),
        "min": round(min(speeds), 2),
        "max": round(max(speeds), 2),
        "samples": [round(speed, 3) for speed in speeds],
    }


@dataclass
class Order:
    """What is asked of both trees; `seed` makes random weights of a preset's shape, None takes its own."""

    model: str
    seed: int | None
    backend: str
    devices: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    contexts: tuple[int, ...] = (256,)
    tokens: int = 400
    pairs: int = 9
    warm_up_s: float = WARM_UP_S


def compare(before: Asked, after: Asked, order: Order, on_pair: Callable[[str], None]) -> Iterator[Row]:
    """A row a context, each when it is finished.

    Raises what asking raises, ValueError if the trees do not open the same model.
    """
    trees = (before, after)
    wanted = {
        "model": order.model, "seed": order.seed, "backend": order.backend,
        "devices": order.devices, "options": order.options,
    }  # fmt: skip
    opened = [tree.ask("open", **wanted) for tree in trees]
    if opened[0]["vocab"] != opened[1]["vocab"] or opened[0]["backend"] != opened[1]["backend"]:
        raise ValueError(f"{order.model}: {before.name} opens {opened[0]}, {after.name} {opened[1]}")
    room = min(one["context"] for one in opened)
    longest = max(order.contexts)
    if longest + order.tokens > room:
        raise ValueError(f"{order.model} holds {room} tokens; {longest} and {order.tokens} are asked for")
    for context in order.contexts:
        prompt = np.random.default_rng(context).integers(0, opened[0]["vocab"], context).tolist()
        yield _run(trees, order, prompt, on_pair)
    for tree in trees:
        tree.ask("close")


def _run(trees: tuple[Asked, Asked], order: Order, prompt: list[int], on_pair: Callable[[str], None]) -> Row:
    asked = {"prompt": prompt, "tokens": order.tokens}
    for tree in trees:
        tree.ask("warm_up", **asked, seconds=order.warm_up_s)
    speeds: tuple[list[float], list[float]] = ([], [])
    ids: tuple[list[list[int]], list[list[int]]] = ([], [])
    for pair in range(order.pairs):
        on_pair(f"{order.model} after {len(prompt)}: pair {pair + 1} of {order.pairs}")
        for which in (0, 1) if pair % 2 == 0 else (1, 0):  # A B, B A, A B: what drifts falls on both
            made = trees[which].ask("decode", **asked)
            speeds[which].append(made["tok_s"])
            ids[which].append(made["ids"])
    for tree, its in zip(trees, ids, strict=True):
        if any(one != its[0] for one in its):
            raise ValueError(f"{order.model}: {tree.name} does not make the same tokens each time")
    return Row(order.model, len(prompt), order.tokens, *speeds, first_difference(ids[0][0], ids[1][0]))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place at which two sequences differ, an end included; None if they are the same."""
    if list(one) == list(other):
        return None
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
