"""Speed against the number of GPUs, what delay is worth, and what a model without lanes reaches: one run.

Each point is `engine.bench` on random weights of Laneformer-2B's shape: the model as it is (delayed tensor
parallelism), the same with another delay, and the same shape as a plain Llama (tensor parallelism). Files in
schema 1 go to --out, a table is printed last. `--backend cpu` runs the same points on virtual devices.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from engine.backends import open_backend
from engine.backends.base import TraceRange
from engine.bench import Point, run_point
from engine.cli.terminal import json_text, table
from engine.config import Lanes, ModelConfig
from engine.errors import EngineError
from engine.measurement import Measurement
from engine.models import Model
from engine.presets import load_preset
from engine.trace import write_trace
from engine.weights import RandomWeights


@dataclass(frozen=True)
class Run:
    """One row of the table: a model on so many devices."""

    name: str
    config: ModelConfig
    devices: int
    context: int


def runs(base: ModelConfig, devices: list[int], contexts: list[int], delays: list[int]) -> Iterator[Run]:
    """The model as it is first, since it is what the others are held against."""
    for context in contexts:
        at = "" if context == contexts[0] else f"-context{context}"
        for count in devices:
            yield Run(f"{base.name}-x{count}{at}", base, count, context)
    plain = replace(base, name=f"{base.name}-plain", lanes=Lanes())
    for count in devices:
        yield Run(f"{plain.name}-x{count}", plain, count, contexts[0])
    for delay in delays:
        if delay == base.lanes.delay:
            continue
        late = replace(base, lanes=replace(base.lanes, delay=delay))
        for count in devices:
            yield Run(f"{base.name}-x{count}-delay{delay}", late, count, contexts[0])


def measured(run: Run, args: argparse.Namespace) -> Measurement:
    """Raises EngineError if it cannot run."""
    model = Model(run.config, RandomWeights(run.config, 0), None, "random", "random:0")
    options = dict(pair.split("=", 1) for pair in args.option)
    numbers = {key: json.loads(value) for key, value in options.items()}
    backend = open_backend(args.backend, model, devices=run.devices, options=numbers)
    trace = TraceRange(8, 11) if args.trace else None
    try:
        return (
            run_point(
                backend,
                model,
                Point(run.context, args.tokens, args.repeats, trace=trace),
                on_trace=lambda spans: write_trace(
                    args.out / f"{run.name}.trace.json",
                    spans,
                    devices=[d.name for d in backend.topology.devices],
                ),
            )
            if trace
            else run_point(backend, model, Point(run.context, args.tokens, args.repeats))
        )
    finally:
        backend.close()


def report(found: list[tuple[Run, Measurement]]) -> str:
    """A row a run: speed, and where a token's microseconds go."""
    rows = []
    for run, m in found:
        waits = sum(t.wait_peer for t in m.phases_us.values())
        token_us = 1e6 / m.decode.median
        rows.append(
            [
                run.name,
                str(run.devices),
                str(m.settings.delay),
                str(run.context),
                f"{m.decode.median:,.0f}",
                f"{m.decode.ci95[0]:,.0f} to {m.decode.ci95[1]:,.0f}",
                "-" if m.mbu.measured is None else f"{m.mbu.measured:.1%}",
                f"{m.prefill.tok_s:,.0f}",
                f"{m.ttft_ms.p50:.2f}",
                f"{waits / token_us:.2%}",
                "yes" if m.verified.tokens_equal else "NO",
            ]
        )
    header = [
        "run",
        "devices",
        "delay",
        "context",
        "tok/s",
        "95 %",
        "MBU",
        "prefill",
        "TTFT ms",
        "wait_peer",
        "ok",
    ]
    return table(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="laneformer-2b")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--context", type=int, nargs="+", default=[256])
    parser.add_argument("--delays", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=JSON")
    parser.add_argument("--only", default="", help="only runs whose name holds this")
    parser.add_argument("--trace", action="store_true", help="a Chrome trace of three tokens of each run")
    parser.add_argument("--git-sha", default="", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    base = load_preset(args.model).config
    found: list[tuple[Run, Measurement]] = []
    failed = False
    for run in runs(base, args.devices, args.context, args.delays):
        if args.only not in run.name:
            continue
        try:
            result = measured(run, args)
        except EngineError as error:
            failed = True
            print(f"{run.name}: {error}", file=sys.stderr, flush=True)
            continue
        except Exception:
            failed = True
            traceback.print_exc()
            continue
        if args.git_sha:
            result = replace(result, git_sha=args.git_sha)
        (args.out / f"{run.name}.json").write_text(json_text(result.to_dict()) + "\n")
        found.append((run, result))
        phases = {
            name: [round(t.work, 1), round(t.wait_local, 1), round(t.wait_peer, 1)]
            for name, t in result.phases_us.items()
        }
        print(f"{run.name}: {result.decode.median:,.1f} tok/s {phases}", flush=True)
    print(report(found))
    return int(failed or not all(m.verified.tokens_equal for _, m in found))


if __name__ == "__main__":
    raise SystemExit(main())
