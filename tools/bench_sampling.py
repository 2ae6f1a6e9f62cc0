"""Every kind of sampling beside greedy, in one process: `python -m tools.bench_sampling --out FILE`.

Launches of all kinds take turns, so that a drift of the machine meets them all alike; each figure is a median
over the turns, and its share of greedy's is the median of the shares within a turn. Writes JSON.

On the backend `cpu` a share by the processor's time of a token stands beside it (greedy's over the kind's):
other programs on the same cores do not count in that. `--option threads=1` leaves out what threads wait for
each other.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from engine.backends import BACKENDS, open_backend
from engine.backends.base import Backend, Job, Token
from engine.backends.running import follow
from engine.measuring import environment
from engine.measuring.point import prompt_tokens
from engine.measuring.statistics import median
from engine.models.catalogue import open_model
from engine.sampling import PLAYGROUND, SamplingParams

KINDS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "playground": PLAYGROUND,
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    "top-k": SamplingParams(temperature=0.8, top_k=50),
    "both": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    "min-p": SamplingParams(temperature=0.8, min_p=0.05),
    "penalties": SamplingParams(
        temperature=0.8, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.2
    ),
    "greedy again": SamplingParams(),
}
"""The second greedy says how much of a difference is the machine's."""
_WAIT_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["random:laneformer-2b"], metavar="NAME|PATH")
    parser.add_argument("--backend", choices=BACKENDS, default="cuda")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the backend")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--git-sha", default="")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    results = []
    for name in args.model:
        model = open_model(name)
        options = dict(each.split("=", 1) for each in args.option)
        backend = open_backend(args.backend, model, devices=args.devices, options=options)
        try:
            prompt = prompt_tokens(model, args.context)
            table = measure(backend, prompt, args.tokens, args.turns, args.kinds)
            facts = environment.capture(backend, model, commit=args.git_sha)
            results.append({"model": name, "devices": args.devices, "kinds": table, "environment": facts})
        finally:
            backend.close()
        for kind, row in table.items():
            by_processor = f", {row['processor_share']:.4f} by processor" if args.backend == "cpu" else ""
            print(
                f"{name} x{args.devices} {kind:14} {row['tok_s']:8.1f} tok/s {row['share']:.4f} of greedy"
                f"{by_processor}, p99 {row['itl_p99_us']:.0f} us = {row['p99_share']:.3f}",
                flush=True,
            )
    args.out.write_text(
        json.dumps({"tokens": args.tokens, "turns": args.turns, "results": results}, indent=1)
    )
    return 0


def measure(
    backend: Backend, prompt: tuple[int, ...], tokens: int, turns: int, kinds: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """tok/s, gaps and shares of greedy's by kind; the first turn warms up and is not counted."""
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    gaps: dict[str, list[float]] = {kind: [] for kind in kinds}
    efforts: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(turns + 1):
        for kind in kinds if turn % 2 else reversed(kinds):
            found, processor_us = decode(backend, Job(prompt, tokens, KINDS[kind]))
            if turn:
                speeds[kind].append((len(found) - 1) * 1e9 / (found[-1].t_ns - found[0].t_ns))
                gaps[kind] += [(b.t_ns - a.t_ns) / 1e3 for a, b in pairwise(found)]
                efforts[kind].append(processor_us)
    greedy, greedy_p99 = speeds[kinds[0]], float(np.quantile(gaps[kinds[0]], 0.99))
    return {
        kind: {
            "tok_s": median(speeds[kind]),
            "samples": speeds[kind],
            "share": median([a / b for a, b in zip(speeds[kind], greedy, strict=True)]),
            "processor_us": median(efforts[kind]),
            "processor_share": median([b / a for a, b in zip(efforts[kind], efforts[kinds[0]], strict=True)]),
            "itl_p50_us": median(gaps[kind]),
            "itl_p99_us": float(np.quantile(gaps[kind], 0.99)),
            "p99_share": float(np.quantile(gaps[kind], 0.99)) / greedy_p99,
            "itl_n": len(gaps[kind]),
        }
        for kind in kinds
    }


def decode(backend: Backend, job: Job) -> tuple[list[Token], float]:
    """A job's tokens, and the microseconds of processor's time that this process had for each after the first
    that came.
    """
    found: list[Token] = []
    first = processor = 0.0

    def take(fresh: Sequence[Token]) -> None:
        nonlocal first, processor
        if fresh and not found:
            first, processor = len(fresh), time.process_time()
        found.extend(fresh)

    launch = backend.launch(job)
    try:
        follow(launch, _WAIT_S, take)
        return found, (time.process_time() - processor) * 1e6 / (len(found) - first)
    finally:
        launch.close()


if __name__ == "__main__":
    raise SystemExit(main())
