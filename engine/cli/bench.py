"""`bench`: measure decode speed by the protocol of engine.measuring.bench."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from engine.backends.base import Backend, TraceRange, TraceSpan
from engine.cli.options import (
    Commands,
    UsageError,
    add_commit_flag,
    add_model_flags,
    add_sampling_flags,
    backend_of,
    command,
    commit_of,
    model_of,
    sampling,
    write_text,
)
from engine.cli.terminal import ProgressBar, json_text, print_json, table
from engine.measuring.bench import PROTOCOL, run_point
from engine.measuring.measurement import FULL, Measurement, Verified
from engine.measuring.point import Point, check_point
from engine.measuring.statistics import median
from engine.measuring.trace import write_trace
from engine.models.config import ModelConfig

CONTEXT, TOKENS, REPEATS = 256, 128, 5


def add(commands: Commands) -> None:
    parser = command(commands, "bench", f"measure decode speed (protocol {PROTOCOL})", run)
    parser.add_argument(
        "--context", type=int, nargs="+", default=None, metavar="N",
        help=f"prompt tokens; several give several points (default: {CONTEXT}, or half the model's context)",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", type=int, default=None, metavar="N",
        help=f"new tokens in each run (default: {TOKENS}, or a quarter of the model's context)",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N", help="timed runs (default: %(default)s)"
    )
    parser.add_argument(
        "--warm", action="store_true",
        help="go on from the prompt that the warm-up left in the prefix cache, as a second request does",
    )  # fmt: skip
    parser.add_argument(
        "--streams", type=int, default=1, metavar="N",
        help="requests side by side; speeds are of one of them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome trace of some tokens of one more run")
    parser.add_argument(
        "--trace-tokens", type=_range, default=TraceRange(1, 3), metavar="A:B",
        help="which new tokens, A up to but not B; 0 is the first (default: 1:3)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write the measurements as schema-2 JSON")
    add_commit_flag(parser)
    add_sampling_flags(parser)
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    model = model_of(args)
    points = _points(args, model.config)
    for point in points:
        check_point(model.config, point)
    _check_writable(args.out, args.trace)
    commit = commit_of(args)
    with backend_of(args, model, args.streams) as backend:
        measured = []
        for i, point in enumerate(points):
            with ProgressBar(f"{model.config.name}, context {point.context}") as bar:
                trace = _trace_writer(args.trace, backend) if i == 0 else None
                measured.append(
                    run_point(backend, model, point, on_progress=bar, on_trace=trace, commit=commit)
                )
    documents = [m.to_dict() for m in measured]
    value = documents if len(documents) > 1 else documents[0]
    if args.out:
        write_text(args.out, json_text(value) + "\n")
    if args.json:
        print_json(value)
    else:
        print(_report(measured))
    return 0 if all(m.verified.passed for m in measured) else 1


def _points(args: argparse.Namespace, config: ModelConfig) -> list[Point]:
    tokens = args.tokens if args.tokens is not None else min(TOKENS, config.context // 4)
    contexts = args.context if args.context is not None else [min(CONTEXT, config.context // 2)]
    params = sampling(args, seed=0)
    trace = args.trace_tokens if args.trace else None
    return [
        Point(c, tokens, args.repeats, params, trace if i == 0 else None, args.warm, args.streams)
        for i, c in enumerate(contexts)
    ]


def _range(text: str) -> TraceRange:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, such as 1:3")
    return TraceRange(int(first), int(last))


def _check_writable(*paths: str | None) -> None:
    """Better now than after minutes of measuring."""
    for path in filter(None, paths):
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {folder}")


def _trace_writer(path: str | None, backend: Backend) -> _TraceWriter | None:
    return None if path is None else _TraceWriter(path, [device.name for device in backend.topology.devices])


class _TraceWriter:
    def __init__(self, path: str, devices: Sequence[str]) -> None:
        self._path = path
        self._devices = devices

    def __call__(self, spans: Sequence[TraceSpan]) -> None:
        if not spans:
            raise UsageError("this backend recorded no spans; there is no trace to write")
        try:
            write_trace(Path(self._path), spans, devices=self._devices)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from error


def _report(measured: Sequence[Measurement]) -> str:
    first = measured[0]
    devices = ", ".join(d.name for d in first.devices)
    read = ", ".join(f"{d.measured_gbs:.1f}" for d in first.devices)
    streams = first.settings.streams
    rows = [
        [
            _context(m),
            f"{m.decode.median:,.1f}",
            *([f"{m.decode.median * streams:,.1f}"] if streams > 1 else []),
            f"{m.decode.ci95[0]:,.1f} to {m.decode.ci95[1]:,.1f}",
            _percent(m.mbu.measured),
            _percent(m.mbu.datasheet),
            f"{m.itl_us.p50:,.0f}",
            "n too small" if m.itl_us.p99 is None else f"{m.itl_us.p99:,.0f}",
            f"{m.ttft_ms.p50:,.1f}",
            f"{m.prefill.tok_s:,.0f}",
            _yes(m.verified),
        ]
        for m in measured
    ]
    header = [
        "context", *(["tok/s a stream", "together"] if streams > 1 else ["tok/s"]), "95 %", "MBU measured",
        "MBU datasheet", "ITL p50 us", "ITL p99 us", "TTFT ms", "prefill tok/s", "verified",
    ]  # fmt: skip
    many = f"{streams} streams of " if streams > 1 else ""
    lines = [
        f"{first.model.name} on {first.backend} ({devices}; reads {read} GB/s),"
        f" {first.settings.repeats} runs of {many}{first.settings.tokens} tokens",
        "",
        table(header, rows),
        "",
        *_phases(first),
        *_streams(measured),
        *(_verdict(m) for m in measured),
    ]
    return "\n".join(lines)


def _context(m: Measurement) -> str:
    kept = m.settings.cached_tokens
    return f"{m.settings.context} ({kept} kept)" if kept else str(m.settings.context)


def _streams(measured: Sequence[Measurement]) -> list[str]:
    """Each stream's median speed, where there are several."""
    lines = []
    for m in measured:
        each = [median(speeds) for speeds in zip(*m.samples.stream_tok_s, strict=True)]
        if each:
            speeds = ", ".join(f"{speed:,.1f}" for speed in each)
            lines += [f"context {m.settings.context}, each stream: {speeds} tok/s", ""]
    return lines


def _phases(m: Measurement) -> list[str]:
    """Where a token's microseconds go, the profiled run's; nothing if the backend does not say."""
    if not m.phases_us:
        return []
    rows = [
        [name, f"{t.work:,.1f}", f"{t.wait_local:,.1f}", f"{t.wait_peer:,.1f}"]
        for name, t in m.phases_us.items()
    ]
    return [table(["phase, us a token", "work", "wait local", "wait peer"], rows), ""]


def _yes(verified: Verified) -> str:
    if not verified.passed:
        return "NO"
    return "yes" if verified.kind == FULL else verified.kind


def _verdict(m: Measurement) -> str:
    v = m.verified
    equal = "equal to" if v.tokens_equal else "DIFFERENT from"
    count = "" if v.tokens is None else f"{v.tokens} "
    line = f"context {m.settings.context}: {count}tokens {equal} those of the {v.against}"
    if v.logit_rel_err is None:
        return line
    within = v.limit is None or v.logit_rel_err <= v.limit
    limit = "" if v.limit is None else f" (limit {v.limit:.0e})"
    return f"{line}, logits {'within' if within else 'WRONG by'} {v.logit_rel_err:.1e}{limit}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
