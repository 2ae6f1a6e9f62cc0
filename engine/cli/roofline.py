"""`roofline`: what memory and launches allow, for any model on any hardware."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

from engine import settings
from engine.cli.options import Commands, UsageError, command
from engine.cli.terminal import print_json, table
from engine.kv_cache import CacheFormat
from engine.measuring.bandwidth import HARDWARE, Memory, hardware, measure_read_gbs
from engine.measuring.roofline import (
    MODELS,
    ActiveModel,
    Plan,
    Share,
    TokenCost,
    active_cost,
    known_models,
    launch_overhead_us,
    plan,
    shape_cost,
    token_cost,
)
from engine.models.catalogue import open_model

_HERE = "this machine"
T = TypeVar("T")


def add(commands: Commands) -> None:
    parser = command(commands, "roofline", "the speed that memory bandwidth and kernel launches allow", run)
    known = ", ".join(row.name for row in MODELS)
    parser.add_argument(
        "--model", default=settings.default_model(), metavar="NAME",
        help=f"a preset or a file; or by active parameters: {known} (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--active", type=float, metavar="PARAMS", help="in place of --model: parameters a token meets"
    )
    parser.add_argument(
        "--weight-bytes", type=float, metavar="B",
        help="bytes a weight (default: the formats of the named model, else 2)",
    )  # fmt: skip
    parser.add_argument("--context", type=int, default=0, metavar="N", help="cached tokens")
    parser.add_argument(
        "--kv-bytes", type=float, metavar="B",
        help="KV bytes of one cached token, all layers (default: by the model's shape, where it is known)",
    )  # fmt: skip
    parser.add_argument(
        "--cache", choices=tuple(CacheFormat),
        help="how keys and values of a model of known shape are kept (default: MONOLANE_CACHE, or fp16)",
    )  # fmt: skip
    parser.add_argument(
        "--hardware", action="append", metavar="NAME",
        help=f"one of {', '.join(row.name for row in HARDWARE)}; repeatable (default: all, and {_HERE})",
    )  # fmt: skip
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="how many of them share the model"
    )
    parser.add_argument(
        "--bandwidth", choices=("stated", "read"), default="stated",
        help="the makers' figure, or what a plain read is known to reach (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--mbu", type=float, default=1.0, metavar="SHARE", help="share of bandwidth used, 0 to 1"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="for the launch limit (default: the model's)")
    parser.add_argument(
        "--kernels", type=int, default=10, metavar="N", help="kernels a layer (default: %(default)s)"
    )
    parser.add_argument(
        "--launch-us", type=float, default=4.5, metavar="US", help="cost of a launch (default: 4.5)"
    )
    parser.add_argument("--tokens", type=int, default=50_000, metavar="N", help="how long do these take")


def run(args: argparse.Namespace) -> int:
    if not 0 < args.mbu <= 1:
        raise UsageError(f"--mbu is {args.mbu:g}; it is a share, above 0 and at most 1")
    cost = _check(lambda: _model(args))
    rows = _check(
        lambda: plan(
            cost.bytes,
            _hardware(args),
            devices=args.devices,
            by_read=args.bandwidth == "read",
            utilisation=args.mbu,
            layers=cost.layers,
            kernels=args.kernels,
            launch_us=args.launch_us,
            tokens=args.tokens,
        )
    )
    launches_us = launch_overhead_us(cost.layers, args.kernels, args.launch_us)
    if args.json:
        print_json(
            {
                "model": cost.name,
                "bytes_per_token": {"weights": cost.weights, "kv": cost.kv},
                "launch_us": launches_us,
                "rows": [asdict(row) for row in rows],
            }
        )
    else:
        print(_report(args, cost, launches_us, rows))
    return 0


def _report(args: argparse.Namespace, cost: TokenCost, launches_us: float, rows: Sequence[Plan]) -> str:
    header = [
        "hardware", "TB/s", "ceiling tok/s", f"at {args.mbu:.0%} MBU", f"{args.tokens:,} tokens",
        "bandwidth from",
    ]  # fmt: skip
    lines = [
        f"{cost.name}: {cost.bytes / 1e9:,.3f} GB a token "
        f"({cost.weights / 1e9:,.3f} weights, {cost.kv / 1e9:,.3f} KV)",
        f"{cost.layers} layers x {args.kernels} kernels x {args.launch_us:g} us = {launches_us:,.0f} us of"
        f" launches a token: at most {1e6 / launches_us:,.0f} tok/s, however fast the memory",
        "",
        table(header, [_cells(row) for row in rows]),
    ]
    return "\n".join(lines)


def _cells(row: Plan) -> list[str]:
    return [
        f"{row.devices} x {row.hardware}",
        f"{row.gbs / 1000:,.2f}",
        f"{row.ceiling_tok_s:,.0f}",
        f"{row.at_mbu_tok_s:,.0f}",
        _duration(row.seconds),
        row.source,
    ]


def _model(args: argparse.Namespace) -> TokenCost:
    """Raises ValueError if the context is beyond what the model holds."""
    for flag, value in (("--context", args.context), ("--kv-bytes", args.kv_bytes or 0)):
        if value < 0:
            raise UsageError(f"{flag} is {value:g}; it must not be negative")
    asked = {"weight_bytes": args.weight_bytes, "kv_bytes": args.kv_bytes, "layers": args.layers}
    cache = _cache(args)
    if args.active is not None:
        own = ActiveModel(
            f"{args.active / 1e9:g} B active", (Share(args.active, 2.0),), 1, "the command line"
        )
        return active_cost(own, args.context, **asked)
    if args.model.lower() in (name.lower() for name in known_models()):
        return token_cost(args.model, context=args.context, cache=cache, **asked)
    return shape_cost(open_model(args.model).config, args.context, cache=cache, **asked)


def _cache(args: argparse.Namespace) -> CacheFormat:
    """How keys and values are kept. Raises UsageError if that is asked for where the shape is not known."""
    by_parameters = args.active is not None or args.model.lower() in (row.name.lower() for row in MODELS)
    if args.cache is not None and by_parameters:
        raise UsageError(
            f"--cache is {args.cache}, but the shape of a model by active parameters is not known:"
            " say with --kv-bytes what a cached token takes"
        )
    return CacheFormat(args.cache or settings.cache_format() or CacheFormat.FP16)


def _hardware(args: argparse.Namespace) -> list[Memory]:
    if args.hardware:
        return [hardware(name) for name in args.hardware]
    if args.devices > 1:
        return list(HARDWARE)
    read = round(measure_read_gbs() / 1000, 4)
    return [*HARDWARE, Memory(_HERE, "", read, read, "measured now")]


def _check(compute: Callable[[], T]) -> T:
    try:
        return compute()
    except (KeyError, ValueError) as error:
        raise UsageError(str(error.args[0])) from error


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"
