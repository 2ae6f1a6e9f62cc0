"""Two commits' decode in turn on one machine: `make bench-pairs ARGS="REV [--model M …] [--context N …]"`.

    python -m tools.bench_pairs REV [--model laneformer-2b …] [--context 256 …] [--backend auto] [--pairs 9]

REV's files are checked out into a folder of their own, which is removed at the end, also after Ctrl-C. Its
engine and that of this tree, as it lies here, each run in a process of their own and wait for each other:
both open the same model (a preset whose weights are not here gets random ones of one seed), warm up for three
seconds and decode in turn, the order turning with each pair. A pair's ratio is this tree's speed over REV's,
by the launches' own clocks, prefill left out. The exit status is 1 if decode is slower by more than 0.5 %
with all of the ratio's interval, 2 if a comparison failed; what had been compared by then is told all the
same.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from engine.backends import AUTO, BACKENDS
from engine.cli.options import key_value
from engine.cli.terminal import table
from engine.errors import EngineError
from engine.measuring.environment import capture, git_facts, state
from engine.measuring.statistics import median
from engine.models.catalogue import list_models
from tools.bench_pairs.pairs import LIMIT, WARM_UP_S, Order, Row, compare
from tools.bench_pairs.tree import Tree, TreeError, checked_out

ROOT = Path(__file__).resolve().parents[2]
SEED = 0
"""Of the random weights."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    rows: list[Row] = []
    try:
        with _ended_in_order():
            _measure(args, rows)
    except (EngineError, TreeError, ValueError) as error:
        print(f"bench_pairs: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if rows:
            print(report(rows))
    return int(any(row.is_slower for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench_pairs", description="Decode of another commit and of this tree, in turn."
    )
    parser.add_argument("revision", metavar="REV", help="what git calls a commit, or a folder with its files")
    parser.add_argument(
        "--model",
        nargs="+",
        default=["laneformer-2b"],
        metavar="M",
        help="a preset whose weights are not here gets random ones (default: %(default)s)",
    )
    parser.add_argument("--context", type=int, nargs="+", default=[256], metavar="N")
    parser.add_argument("--tokens", type=int, default=400, help="decoded a launch (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=9, help="5 or more have an interval (%(default)s)")
    parser.add_argument("--backend", choices=(AUTO, *BACKENDS), default=AUTO)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--option", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, metavar="SECONDS")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where all of it is written to, as JSON")
    return parser


def _measure(args: argparse.Namespace, rows: list[Row]) -> None:
    """Adds each row as soon as it is finished."""
    if args.pairs < 1 or args.tokens < 2 or min(args.context) < 1:
        raise ValueError("it takes 1 pair, 2 tokens and a context of 1 at the least")
    environment = capture()
    with ExitStack() as stack:
        folder, sha = _before(stack, args.revision)
        before = stack.enter_context(Tree(folder, f"the tree of {args.revision}"))
        after = stack.enter_context(Tree(ROOT, "this tree"))
        for model in args.model:
            order = Order(
                model,
                seed_of(model),
                args.backend,
                args.devices,
                dict(args.option),
                tuple(args.context),
                args.tokens,
                args.pairs,
                args.warm_up,
            )
            for row in compare(before, after, order, _say):
                rows.append(row)
                _write(args, sha, rows, environment)


def seed_of(model: str) -> int | None:
    """Of random weights, for a preset whose own are not on this machine; None: the model has its own."""
    return SEED if any(entry.name == model and not entry.available for entry in list_models()) else None


def _before(stack: ExitStack, revision: str) -> tuple[Path, dict[str, Any]]:
    """Where the other tree lies, and which commit it is."""
    if (Path(revision) / "engine").is_dir():
        return Path(revision).resolve(), git_facts(Path(revision).resolve())
    folder, sha = stack.enter_context(checked_out(ROOT, revision))
    return folder, {"sha": sha}


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A SIGTERM, too, leaves no folder and no process behind."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _say(what: str) -> None:
    print(f"bench_pairs: {what}", file=sys.stderr, flush=True)


def _write(
    args: argparse.Namespace, sha: dict[str, Any], rows: Sequence[Row], environment: dict[str, Any]
) -> None:
    if args.out is None:
        return
    found = {
        "what": "Decode of two commits in turn on one machine (python -m tools.bench_pairs)",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "before": sha,
        "after": git_facts(ROOT) or environment.get("git", {}),
        "settings": {
            "backend": args.backend, "devices": args.devices, "options": dict(args.option),
            "seeds": {model: seed_of(model) for model in args.model},
            "tokens": args.tokens, "pairs": args.pairs, "warm_up_s": args.warm_up,
        },
        "rows": [row.to_dict() for row in rows],
        "environment": {**environment, "state": {"before": environment["state"], "after": state()}},
    }  # fmt: skip
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def report(rows: Sequence[Row]) -> str:
    """A table for people."""
    header = ["model", "context", "before tok/s", "after tok/s", "ratio", "95 %", "n", "tokens", ""]
    return table(header, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    low, high = row.interval
    return [
        row.model,
        str(row.context),
        _speeds(row.before),
        _speeds(row.after),
        f"{row.ratio:.4f}",
        f"{low:.4f} to {high:.4f}",
        str(len(row.before)),
        row.words,
        f"slower by more than {LIMIT:.1%}" if row.is_slower else "",
    ]


def _speeds(speeds: Sequence[float]) -> str:
    return f"{median(speeds):,.1f} ({min(speeds):,.1f} to {max(speeds):,.1f})"


if __name__ == "__main__":
    sys.exit(main())
