"""The command: which GPUs take part, and the table of what was timed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from engine.backends.cuda.driver import device_count
from engine.backends.cuda.sharding import MAX_RANKS
from engine.cli.options import UsageError
from engine.cli.terminal import print_json, table
from engine.errors import EngineError
from tools.bench_exchange.measure import TIMED, ExchangeTime, measure
from tools.bench_exchange.nccl import beside_nccl

SIZES = (256, 1024, 3072, 4096, 8192)
REPEATS = 9


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return run(parse_arguments(argv))
    except EngineError as error:
        print(f"bench_exchange: {error}", file=sys.stderr)
        return 2


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench_exchange",
        description="The latency of an exchange between GPUs, by its size.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    parser.add_argument(
        "--devices", type=int, action="append", metavar="N",
        help="how many GPUs take part; repeatable (default: 2, 4, 8, as many of these as there are)",
    )  # fmt: skip
    parser.add_argument(
        "--size", type=int, action="append", metavar="FLOATS",
        help=f"FP32 numbers in the vector; repeatable (default: {', '.join(map(str, SIZES))})",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N",
        help=f"launches of {TIMED} exchanges each (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--virtual",
        action="store_true",
        help="on parts of one GPU: tries the protocol, says nothing of links",
    )
    parser.add_argument("--no-nccl", action="store_true", help="leave NCCL out")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    if args.repeats < 1:
        raise UsageError(f"--repeats is {args.repeats}; it must be at least 1")
    sizes = tuple(args.size or SIZES)
    nccl = not (args.no_nccl or args.virtual)
    found = [
        time
        for devices in _devices(args)
        for time in measure(devices, sizes, args.repeats, virtual=args.virtual)
    ]
    if nccl:
        found = beside_nccl(found, args.repeats)
    if args.json:
        print_json([asdict(time) for time in found])
    else:
        print(report(found))
    return 0


def _devices(args: argparse.Namespace) -> list[int]:
    there = device_count()
    if args.devices:
        for asked in args.devices:
            if asked > MAX_RANKS:
                raise UsageError(f"--devices is {asked}; at most {MAX_RANKS} GPUs take part in an exchange")
            if not 2 <= asked <= (MAX_RANKS if args.virtual else there):
                raise UsageError(
                    f"--devices is {asked}; this machine has {there} GPUs, and two or more take part"
                )
        return list(args.devices)
    chosen = [count for count in (2, 4, 8) if args.virtual or count <= there]
    if not chosen:
        raise UsageError("an exchange needs at least 2 GPUs; this machine has 1 (--virtual splits it)")
    return chosen


def report(found: Sequence[ExchangeTime]) -> str:
    """A row a size and number of GPUs, and what the columns mean."""
    rows = [
        [
            str(t.devices),
            f"{t.floats:,}",
            f"{t.rows_us:.2f}",
            f"{t.whole_us:.2f}",
            "-" if t.nccl_us is None else f"{t.nccl_us:.2f}",
        ]
        for t in found
    ]
    notes = [
        "own rows: every SM has the sum of the rows it works on; whole: every SM has read all of it.",
        f"Medians over launches of {TIMED} exchanges, each of which needs the one before.",
    ]
    notes += [f"NCCL: {text}" for text in dict.fromkeys(t.nccl for t in found) if text]
    header = ["GPUs", "FP32", "own rows, us", "whole, us", "NCCL all-reduce, us"]
    return "\n".join([table(header, rows), "", *notes])
