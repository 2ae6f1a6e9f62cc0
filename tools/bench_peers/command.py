"""`make bench-peers`: other engines beside ours on one GPU, the same shape and context, in turn, in one run.

    python -m tools.bench_peers [--model NAME:CONTEXT[,CONTEXT...] ...] [--peers torch llama.cpp megakernels]
    python -m tools.bench_peers --tokens 0 --peers llama.cpp             prompts only
    python -m tools.bench_peers --backend cpu --model tiny-llama:32      a dry run

Peers: PyTorch (a CUDA graph of a step compiled by Inductor; the package torch), llama.cpp (its llama-bench
on an F16 file; git, cmake and nvcc, or a folder with the program), Megakernels of Hazy Research (the shape of
Llama-3.2-1B alone; git, nvcc, torch, transformers, einops, pybind11). Each takes its turn with ours, every
other turn in reverse, at the first context of a model, and so does llama.cpp with prompts; then ours is
measured by the protocol of engine.measuring.bench at all contexts. All weights are random. What cannot be had
on this machine is said in the output and in the summary. Exit code 0: everything asked for was measured, and
ours is right.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engine.backends.cuda.driver import reachable_devices
from engine.cli.options import add_commit_flag, commit_of, key_value
from engine.errors import EngineError
from engine.measuring import environment
from engine.settings import home
from tools.bench_node.results import short_name
from tools.bench_peers.plan import PEERS, Order, Target
from tools.bench_peers.results import Results
from tools.bench_peers.run import PeersRun
from tools.bench_peers.sources import LLAMA_CPP, MEGAKERNELS
from tools.setup import ROOT

TARGETS = (
    Target("llama-3.2-1b", (32, 8192)),
    Target("laneformer-2b", (256, 128, 2048, 3968)),
    Target("smollm2-135m", (256,)),
)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except (EngineError, ValueError) as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench_peers", description="Other engines beside ours.")
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run")
    parser.add_argument(
        "--model", nargs="+", type=_target, default=list(TARGETS), metavar="NAME:CONTEXT,…",
        help="presets, each with contexts; peers run at the first (default: what the results page shows)",
    )  # fmt: skip
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument(
        "--prompts", nargs="*", type=int, default=[512, 2048], metavar="N",
        help="prompts of so many tokens, read beside llama.cpp (default: 512 2048)",
    )  # fmt: skip
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="of a decode; 0: prompts only")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="decodes in a turn")
    parser.add_argument("--turns", type=int, default=2, metavar="N")
    parser.add_argument(
        "--llama-cpp", default=LLAMA_CPP, metavar="FOLDER|URL@COMMIT",
        help="a folder with llama-bench, or with llama.cpp's sources (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--megakernels", default=MEGAKERNELS, metavar="FOLDER|URL@COMMIT", help="default: %(default)s"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER",
        help="for the files (default: benchmarks/, or bench-peers/ under MONOLANE_HOME for cpu)",
    )  # fmt: skip
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="for clones, builds and model files")
    parser.add_argument(
        "--limit", type=float, default=900.0, metavar="S",
        help="begin no peer and no point of ours after so many seconds (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--option", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="of our backend"
    )
    add_commit_flag(parser)
    return parser


def _target(text: str) -> Target:
    try:
        return Target.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(args: argparse.Namespace) -> int:
    commit = commit_of(args)
    facts = environment.capture(commit=commit)
    order = Order(
        args.backend, tuple(args.model), tuple(args.peers), args.tokens, args.repeats, args.turns,
        args.llama_cpp, args.megakernels, args.limit, tuple(args.prompts), commit, dict(args.option),
    )  # fmt: skip
    scratch = home() / "bench-peers"
    out = args.out or (ROOT / "benchmarks" if order.on_gpu else scratch)
    hardware = short_name(reachable_devices(1)[0].name) if order.on_gpu else "cpu"
    results = Results(out, hardware, commit, facts)
    run = PeersRun(order, results, args.work or scratch / "work", lambda text: print(text, flush=True))
    try:
        run.run()
    finally:
        results.write_summary(run.not_run, run.seconds)
        print("\n" + results.report(run.not_run), flush=True)
    right = all(m.verified.passed for m in results.measured) and bool(results.measured or not order.tokens)
    return 0 if right and not run.not_run else 1
