"""Several streams in one launch beside one alone, on the CPU: `make bench-streams`.

    python -m tools.bench_streams [--model smollm2-135m] [--streams 1 4 8] [--repeats 5] [--threads N]

Each round runs every number of streams once on a backend with rows for the most of them, and one stream on
a backend with a single row; the order turns from round to round, so that whatever else the machine does
falls on all. A speed is that of the time in which all streams decode (engine.measuring.runs). Processor's
time is that of the whole process for a token of each stream, once all decode: on a busy machine it says
more than the clock, with one thread above all, as a team's threads wait for each other by spinning. Tokens
are compared with those of each stream before, alone and beside others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.cli.terminal import table
from engine.errors import EngineError
from engine.measuring.point import Point, prompts_of
from engine.measuring.runs import run_together
from engine.measuring.statistics import median
from engine.models.catalogue import Model, open_model
from engine.settings import MOST_ROWS
from tools.bench_cpu import rounds

MUST = {4: 2.5}
"""Together over one alone, on two cores (CPU)."""
MUST_LONE = 0.98
"""Of one stream's speed on a single row: what it keeps on a backend with rows."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: tokens a second of one stream, and milliseconds of the processor for a token of each."""

    tok_s: float
    processor_ms: float


class Contestant:
    """A backend, and the streams that run on it."""

    def __init__(self, backend: Backend, model: Model, point: Point) -> None:
        self.backend, self._point = backend, point
        self._prompts = prompts_of(model, point)
        self._alone: dict[int, list[int]] = {}

    def run(self, streams: int) -> Sample:
        """Raises SystemExit if a stream's tokens depend on the others."""
        point = self._point
        seen: list[tuple[float, int]] = []
        """The processor's time, and the last stream's tokens, while each has some."""

        def note(counts: Sequence[int]) -> None:
            if min(counts):
                seen.append((time.process_time(), counts[-1]))

        jobs = [
            Job(prompt, point.room if streams > 1 else point.tokens) for prompt in self._prompts[:streams]
        ]
        repeat = run_together(self.backend, jobs, point.tokens, note)
        for stream, run in enumerate(repeat.runs):
            ids = run.ids[: point.tokens]
            if self._alone.setdefault(stream, ids) != ids:
                sys.exit(f"bench_streams: stream {stream + 1} of {streams} has other tokens than before")
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        return Sample(repeat.tok_s, (last_s - first_s) * 1e3 / max(1, last - first))


def main() -> int:
    parser = argparse.ArgumentParser(description="Several streams beside one alone, on the CPU.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8], choices=range(1, MOST_ROWS + 1))
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=rounds, default=5, help="rounds; the order turns in each")
    parser.add_argument("--threads", type=int, help="of the kernel (default: all cores)")
    args = parser.parse_args()
    counts = sorted({1, *args.streams})
    point = Point(args.context, args.tokens, args.repeats, streams=counts[-1])
    options = {"threads": args.threads} if args.threads else {}
    try:
        model = open_model(args.model)
        single = Contestant(open_backend("cpu", model, options=options), model, point)
        several = Contestant(open_backend("cpu", model, options=options, rows=counts[-1]), model, point)
        samples = measure(single, several, counts, args.repeats)
    except EngineError as error:
        print(f"bench_streams: {error}", file=sys.stderr)
        return 2
    print(f"{model.config.name}, context {args.context}, {args.tokens} tokens, medians of {args.repeats}")
    print(report(samples, counts))
    return 0


def measure(
    single: Contestant, several: Contestant, counts: Sequence[int], repeats: int
) -> dict[int, list[Sample]]:
    """Samples by number of streams; those of the single row by 0. The first round warms up."""
    order = [0, *counts]
    samples: dict[int, list[Sample]] = {count: [] for count in order}
    for turn in range(repeats + 1):
        for count in order if turn % 2 else order[::-1]:
            sample = several.run(count) if count else single.run(1)
            if turn:
                samples[count].append(sample)
    single.backend.close()
    several.backend.close()
    return samples


def report(samples: dict[int, list[Sample]], counts: Sequence[int]) -> str:
    base = median([sample.tok_s for sample in samples[0]])
    base_ms = median([sample.processor_ms for sample in samples[0]])
    rows = []
    for count, taken in samples.items():
        speeds = [sample.tok_s for sample in taken]
        speed, ms, streams = median(speeds), median([sample.processor_ms for sample in taken]), max(1, count)
        must = MUST_LONE if count == 1 else MUST.get(count)
        verdict = (
            "" if must is None else f"{must:g} {'reached' if speed * streams / base >= must else 'MISSED'}"
        )
        rows.append([
            f"{streams} on {counts[-1]} rows" if count else "1 on a single row",
            f"{speed:.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}", f"{speed * streams:.1f}",
            f"{speed * streams / base:.2f}", verdict, f"{ms:.2f}", f"{streams * base_ms / ms:.2f}",
        ])  # fmt: skip
    header = [
        "streams", "tok/s of one", "lowest to highest", "together", "over one", "must", "processor ms a step",
        "over one by it",
    ]  # fmt: skip
    return table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
