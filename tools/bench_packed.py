"""Packed files of one shape in this engine and in llama.cpp, in the same run: `make bench-packed`.

    python -m tools.bench_packed [--preset qwen2.5-0.5b] [--repeats 5] [--threads N] [--out FILE]

Random weights of the preset's shape are written as Q8_0 and Q4_K_M (tools.packed_gguf), and both programs
read the same files. They are timed in turn, and the order turns from round to round. Beside the speed stands
the processor's time a token, which says what the work costs where others take turns on the cores; with one
thread neither program spins while it waits, so that it is the work alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.backends import open_backend
from engine.backends.base import Backend, Job, Token
from engine.backends.running import follow
from engine.errors import EngineError
from engine.measuring.bandwidth import usable_cores
from engine.measuring.environment import capture
from engine.measuring.point import prompt_tokens
from engine.measuring.roofline import bytes_per_token
from engine.measuring.statistics import median
from engine.models.catalogue import open_model
from engine.models.presets import load_preset
from tools.bench_cpu import Peer, rounds
from tools.packed_gguf import MIXTURES, write_packed_gguf
from tools.setup import SetupError

CONTEXT, TOKENS = 256, 64
MUST = 1.1


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of one program: tokens a second, and milliseconds of the processor a decoded token."""

    who: str
    prefill: float
    decode: float
    cpu_ms: float


def ours(backend: Backend, prompt: list[int]) -> Turn:
    """The processor's time is counted from the first token on."""
    got: list[Token] = []
    begun: list[tuple[float, int]] = []

    def take(fresh: Sequence[Token]) -> None:
        got.extend(fresh)
        if got and not begun:
            begun.append((time.process_time(), len(got)))

    outcome = follow(backend.launch(Job(tuple(prompt), TOKENS)), 5.0, take)
    cpu, first = begun[0]
    spent = (time.process_time() - cpu) / (len(got) - first)
    speed = (len(got) - 1) / (got[-1].t_ns - got[0].t_ns) * 1e9
    return Turn("ours", len(prompt) / outcome.prefill_ns * 1e9, speed, spent * 1e3)


def theirs(peer: Peer, prompt: list[int]) -> Turn:
    times = peer.ask(prompt, TOKENS)
    steps = TOKENS - 1
    cpu_ms = times["decode_cpu_s"] / steps * 1e3
    return Turn("llama.cpp", len(prompt) / times["prefill_s"], steps / times["decode_s"], cpu_ms)


def compare(path: Path, repeats: int, threads: int) -> dict[str, Any]:
    """All turns on one file, in the order in which they were taken, and what a token reads."""
    model = open_model(str(path))
    prompt = list(prompt_tokens(model, CONTEXT))
    backend, peer = open_backend("cpu", model, options={"threads": threads}), Peer(str(path), threads)
    try:
        sides: list[Callable[[], Turn]] = [lambda: theirs(peer, prompt), lambda: ours(backend, prompt)]
        for warm_up in sides:
            warm_up()
        turns = [side() for i in range(repeats) for side in (sides[::-1] if i % 2 else sides)]
        read = bytes_per_token(model.config, CONTEXT, backend.storage)
        return {
            "turns": [asdict(turn) for turn in turns],
            "bytes_per_token": read.total,
            "read_gbs": sum(backend.measure_bandwidth()),
            "peer": peer.about,
        }
    finally:
        peer.close()
        backend.close()


def print_table(mixture: str, found: dict[str, Any], threads: int) -> bool:
    """One file's table. Returns whether decode is as fast as it must be."""
    print(f"\n{mixture}, {threads} threads, {len(found['turns']) // 2} turns each")
    print(f"{'':<26}{'ours':>9}{'low':>9}{'high':>9}{'llama.cpp':>11}{'low':>9}{'high':>9}{'ratio':>8}")
    ratios = {}
    for what, field in (
        ("decode, tok/s", "decode"),
        ("prefill, tok/s", "prefill"),
        ("CPU ms a token", "cpu_ms"),
    ):
        sides = [[t[field] for t in found["turns"] if t["who"] == who] for who in ("ours", "llama.cpp")]
        a, b = (median(side) for side in sides)
        ratios[field] = b / a if field == "cpu_ms" else a / b
        cells = "".join(
            f"{median(s):>{w}.2f}{min(s):>9.2f}{max(s):>9.2f}" for s, w in zip(sides, (9, 11), strict=True)
        )
        print(f"{what:<26}{cells}{ratios[field]:>8.3f}")
    print(f"a token reads {found['bytes_per_token'] / 1e6:.0f} MB; memory gives {found['read_gbs']:.1f} GB/s")
    return ratios["decode"] >= MUST


def main() -> int:
    parser = argparse.ArgumentParser(description="Packed files in this engine and in llama.cpp, in turn.")
    parser.add_argument("--preset", default="qwen2.5-0.5b", help="whose shape")
    parser.add_argument("--repeats", type=rounds, default=5, help="turns of each; the order turns in each")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of each program")
    parser.add_argument("--out", type=Path, help="a JSON file for every turn")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    reached = True
    try:
        config = load_preset(arguments.preset).config
        with TemporaryDirectory() as folder:
            for mixture in MIXTURES:
                path = write_packed_gguf(Path(folder) / f"{mixture}.gguf", config, mixture)
                found[mixture] = compare(path, arguments.repeats, arguments.threads)
                path.unlink()
                reached &= print_table(mixture, found[mixture], arguments.threads)
    except (EngineError, SetupError) as error:
        print(f"bench_packed: {error}", file=sys.stderr)
        return 2
    if arguments.out:
        arguments.out.write_text(
            json.dumps({**found, "environment": capture()}, indent=1) + "\n", encoding="utf-8"
        )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
