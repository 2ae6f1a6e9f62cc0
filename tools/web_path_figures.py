"""What a websocket client saw of the paced engines' streams, and the figures that follow from it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from engine.measuring.statistics import median, median_interval, quantile

ALIGN_MS = 400
"""The grid of the first worker's first tokens; each further worker has its own, so that they spread."""
ALIGN_STEP_MS = 2


class PathError(Exception):
    """The path lost or changed something, or a part of it did not start."""


def align_ms(worker: str) -> int:
    """The grid on which the first tokens of the worker called "paced-<index>" fall."""
    return ALIGN_MS + ALIGN_STEP_MS * int(worker.rpartition("-")[2])


@dataclass
class Stream:
    """What one websocket client saw of one generation. Times are nanoseconds of the monotonic clock."""

    align_ns: int = 0
    first_ns: int = 0
    tokens: int = 0
    text: int = 0
    acked: int = 0
    arrivals: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(when, tokens before, tokens in the frame, microseconds since the first token)"""
    error: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, frame: dict[str, Any], now: int) -> None:
        kind = frame["type"]
        if kind == "started":
            self.align_ns = align_ms(frame["worker"]) * 1_000_000
        elif kind == "tokens":
            self._add_tokens(frame, now)
        elif kind == "done":
            self._end(frame)
        elif kind == "error":
            self.fail(f"{frame['code']}: {frame['message']}")

    def fail(self, why: str) -> None:
        self.error = self.error or why
        self.ended.set()

    def _add_tokens(self, frame: dict[str, Any], now: int) -> None:
        if frame["seq"] != self.tokens:
            self.fail(f"a frame begins at token {frame['seq']}, but {self.tokens} have come")
        if not self.arrivals:
            self.first_ns = now // self.align_ns * self.align_ns
        self.tokens += frame["n"]
        self.text += len(frame["text"])
        self.arrivals.append((now, frame["seq"], frame["n"], frame["t_us"]))

    def _end(self, frame: dict[str, Any]) -> None:
        if frame["finish_reason"] != "length" or frame["timings"]["completion_tokens"] != self.tokens:
            self.fail(f"it ended by {frame['finish_reason']} with {self.tokens} tokens received")
        self.ended.set()


@dataclass(frozen=True)
class Figures:
    """Of one run, all its streams together."""

    token_ms: list[float]
    frame_ms: list[float]
    frames_per_s: float
    tokens_per_frame: float


def figures(streams: list[Stream], gap_ns: float, burst: int) -> Figures:
    token_ms: list[float] = []
    frame_ms: list[float] = []
    frames, seconds = 0, 0.0
    for stream in streams:
        for now, before, count, t_us in stream.arrivals:
            frame_ms.append((now - stream.first_ns - t_us * 1000) / 1e6)
            for index in range(before, before + count):
                due = stream.first_ns + -(-index // burst) * burst * gap_ns
                token_ms.append((now - due) / 1e6)
        frames += len(stream.arrivals) - 1
        seconds += (stream.arrivals[-1][0] - stream.arrivals[0][0]) / 1e9
    return Figures(token_ms, frame_ms, frames / seconds, len(token_ms) / (frames + len(streams)))


def summary(runs: list[Figures], count: int, burst: int) -> dict[str, Any]:
    """Of all runs of one number of streams; a percentile that n is too small for is None."""
    found: dict[str, Any] = {"streams": count, "burst": burst, "repeats": len(runs)}
    for what in ("token", "frame"):
        samples = [list(getattr(run, f"{what}_ms")) for run in runs]
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            each = [quantile(run, q) for run in samples]
            found[f"{what}_{name}_ms"] = _median_of_runs([value for value in each if value is not None])
        found[f"{what}_n"] = sum(map(len, samples))
        found[f"{what}_max_ms"] = max(map(max, samples))
    found["frames_per_s"] = median([run.frames_per_s for run in runs])
    found["tokens_per_frame"] = median([run.tokens_per_frame for run in runs])
    return found


def _median_of_runs(samples: list[float]) -> dict[str, Any] | None:
    """The middle run and the raw values; None where no run had enough samples for the quantile."""
    if not samples:
        return None
    return {"median": median(samples), "ci95": median_interval(samples), "samples": samples}
