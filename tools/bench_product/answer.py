"""What a client saw of one generation, and what of it makes a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from tools.bench_product.product import ProductError

Frame = dict[str, Any]


@dataclass
class Answer:
    """One generation as the page saw it; times in seconds of time.perf_counter()."""

    asked: float
    arrived: list[tuple[float, int]] = field(default_factory=list)
    """When each frame of tokens came, and how many tokens there were with it."""
    parts: list[str] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def first_token_ms(self) -> float:
        return (self.arrived[0][0] - self.asked) * 1e3

    @property
    def tok_s(self) -> float:
        """At the client: the tokens after the first frame over the time since it."""
        (begin, first), (end, last) = self.arrived[0], self.arrived[-1]
        return (last - first) / (end - begin) if end > begin else 0.0

    @property
    def silence_s(self) -> float:
        """The longest wait between two frames of tokens."""
        times = [at for at, _ in self.arrived]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def add(self, frame: Frame, now: float) -> bool:
        """Takes a frame; True if it is the last. Raises ProductError for an error frame, or a gap."""
        if frame["type"] == "error":
            raise ProductError(f"the page was told: {frame['message']}")
        if frame["type"] == "started":
            self.workers.append(frame["worker"])
        if frame["type"] == "tokens":
            if frame["seq"] != self.tokens:
                raise ProductError(f"a frame begins at token {frame['seq']} after {self.tokens}")
            self.tokens += frame["n"]
            self.arrived.append((now, self.tokens))
            self.parts.append(frame["text"])
        if frame["type"] == "done":
            self.parts.append(frame["text"])
            self.timings = frame["timings"]
        return bool(frame["type"] == "done")


def new_tokens(answers: Sequence[Answer]) -> int:
    """The median of how many tokens of each prompt no earlier request had left in the cache."""
    return int(median([one.timings["prompt_tokens"] - one.timings["cached_tokens"] for one in answers]))


def first_token_parts(answers: Sequence[Answer]) -> dict[str, float]:
    """Medians of where the time to the first token went."""
    rows = []
    for answer in answers:
        times = answer.timings
        known = times["queue_ms"] + times["tokenize_ms"] + times["prefill_ms"]
        parts = {name: times[f"{name}_ms"] for name in ("queue", "tokenize", "prefill")}
        parts["launch"] = max(0.0, times["ttft_ms"] - known)
        parts["publish"] = times["publish_ms"]
        parts["socket"] = answer.first_token_ms - times["ttft_ms"] - times["publish_ms"]
        rows.append(parts)
    return {name: round(median([row[name] for row in rows]), 3) for name in rows[0]}


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
        "n": len(values),
    }
