"""`make bench-node`: what a node of GPUs reaches, with checks before and tables after, in under 8 minutes.

    python -m tools.bench_node [--devices 1 2 4 8] [--quick] [--out FOLDER] [--git-sha SHA]
    python -m tools.bench_node --backend cpu      a dry run: the same steps on virtual devices, a tiny model
    python -m tools.bench_node --report FOLDER    the tables and the plot of files that are there

Laneformer-2B as it is (delayed tensor parallelism), its shape as a plain Llama (tensor parallelism), and
other delays, each on every number of devices; by the protocol of engine.measuring.bench, on random weights.
Each point is written to --out as schema 2 as soon as it is measured; a run that is cut off, or reaches
--limit, has what it has.
Needs NumPy and cuda-bindings, for NCCL's column PyTorch. Exit code 0: all ran and was right.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from engine.backends.cuda.driver import device_count, reachable_devices
from engine.cli.options import add_commit_flag, commit_of, key_value
from engine.errors import EngineError, MeasurementError
from engine.settings import home
from tools.bench_node.correctness import all_well
from tools.bench_node.plan import DEVICES, DRY, FULL, QUICK, Order, Scale
from tools.bench_node.plot import draw
from tools.bench_node.report import report
from tools.bench_node.results import Results, read_results, short_name
from tools.bench_node.run import NodeRun
from tools.setup import ROOT

PLOT = "speed-by-devices.svg"


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return _report(args) if args.report else _run(args)
    except (EngineError, ValueError) as error:
        print(f"bench_node: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench_node", description="What a node of GPUs reaches.")
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run")
    parser.add_argument(
        "--devices", type=int, nargs="+", metavar="N", help="default: 1, 2, 4 and 8, as many as there are"
    )
    parser.add_argument(
        "--quick", action="store_true", help="128 tokens, 3 repeats, the short context, no NCCL"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER",
        help="for the files (default: benchmarks/, or bench-node/ under MONOLANE_HOME for --quick and cpu)",
    )  # fmt: skip
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="default: docs/images/ where --out is benchmarks/"
    )
    parser.add_argument(
        "--limit", type=float, default=450.0, metavar="S",
        help="begin no model, check, exchange or point after so many seconds (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="measure nothing; read these files")
    parser.add_argument(
        "--option", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="of the backend"
    )
    add_commit_flag(parser)
    return parser


def _run(args: argparse.Namespace) -> int:
    order = order_of(args)
    kept = ROOT / "benchmarks" if args.backend == "cuda" and not args.quick else home() / "bench-node"
    out = args.out or kept
    run = NodeRun(order, Results(out, _hardware(order), order.commit), lambda text: print(text, flush=True))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is shown in any case
    interrupted = False
    try:
        run.run()
    except KeyboardInterrupt:
        interrupted = True
    print("\n" + report(run.results.measured, run.checks, run.exchanges, run.not_run), flush=True)
    if run.results.measured:
        _draw(run.results, order.base.name, args.svg or _svg_beside(out))
    right = all_well(run.checks, order) and all(m.verified.passed for m in run.results.measured)
    missing = {what for what in run.not_run if what != "exchange" or order.backend == "cuda"}
    return 0 if right and not missing and not interrupted else 1


def _report(args: argparse.Namespace) -> int:
    measured, exchanges = read_results(args.report)
    if not measured:
        raise MeasurementError(f"{args.report} holds no file of this benchmark (MODEL-HARDWARE-xN.json)")
    base = min((m.model.name for m in measured), key=len)
    args_svg = args.svg or _svg_beside(args.report)
    args_svg.write_text(draw(measured, base), encoding="utf-8")
    print(report(measured, [], exchanges, {}))
    return 0


def order_of(args: argparse.Namespace) -> Order:
    """Raises BackendUnavailable without a driver, ValueError for devices that are not there."""
    devices = tuple(sorted(set(args.devices or _present(args.backend))))
    if devices[0] < 1:
        raise ValueError(f"--devices names {devices[0]}; the least is 1")
    if args.backend == "cuda" and devices[-1] > (there := device_count()):
        raise ValueError(f"--devices names {devices[-1]}; this machine has {there} GPUs")
    scale: Scale = DRY if args.backend == "cpu" else QUICK if args.quick else FULL
    return Order(args.backend, scale, devices, dict(args.option), args.limit, commit_of(args))


def _present(backend: str) -> list[int]:
    there = DEVICES[-1] if backend == "cpu" else device_count()
    return [count for count in DEVICES if count <= there]


def _hardware(order: Order) -> str:
    return short_name(reachable_devices(1)[0].name) if order.backend == "cuda" else "cpu"


def _svg_beside(out: Path) -> Path:
    return (ROOT / "docs" / "images" if out.resolve() == (ROOT / "benchmarks") else out) / PLOT


def _draw(results: Results, base: str, svg: Path) -> None:
    if any(m.model.name == base for m in results.measured):
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(draw(results.measured, base), encoding="utf-8")
        print(f"\nfiles in {results.out}, drawn to {svg}")
