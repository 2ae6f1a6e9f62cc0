"""The CPU kernel beside llama.cpp, on the same file, in the same run: `make bench-cpu`.

    python -m tools.bench_cpu [--repeats 5] [--out FILE]

Each round times both engines, and the order turns from round to round, so that whatever else the machine does
falls on both. Prompts are the benchmark protocol's (engine.bench). Speeds are medians of the rounds, with the
lowest and the highest. llama.cpp reads the file's 4-bit weights; ours are the same numbers in FP16, which is
3.2 times as many bytes a token.

Beside the table it writes a schema-1 measurement of the decode point to benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.backends import open_backend
from engine.backends.base import Backend, Job, Token
from engine.bandwidth import measure_read_gbs, usable_cores
from engine.bench import Point, prompt_tokens, run_point
from engine.errors import CheckpointError, EngineError
from engine.models import Model, open_model
from engine.roofline import mean_bytes_per_token
from engine.statistics import median
from tools.peers import make_peers
from tools.setup import ROOT, SetupError

MODEL = "smollm2-135m"
CONTEXT, TOKENS, PREFILL = 256, 128, 512
MUST = {"decode": 165.0, "decode_ratio": 1.4, "mbu": 0.82, "prefill": 800.0, "prefill_ratio": 3.0}
MUST_LOAD_S, MUST_MEMORY_MB, MUST_SCALING = 1.0, 150.0, 1.8


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of one run."""

    prefill: float
    decode: float


class Peer:
    """llama.cpp in a process of its own, asked line by line."""

    def __init__(self, model_file: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [make_peers(), ROOT / "tools" / "peer_llama_cpp_speed.py", model_file, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = self._answer()

    def run(self, prompt: Sequence[int], tokens: int) -> Speed:
        assert self._process.stdin is not None  # noqa: S101 (Popen was given a pipe)
        self._process.stdin.write(json.dumps({"prompt": list(prompt), "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        times = self._answer()
        return Speed(len(prompt) / times["prefill_s"], (tokens - 1) / times["decode_s"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 (Popen was given a pipe)
        line = self._process.stdout.readline()
        if not line:
            raise CheckpointError("llama.cpp ended without an answer: see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def run(backend: Backend, prompt: Sequence[int], tokens: int) -> Speed:
    launch = backend.launch(Job(tuple(prompt), tokens))
    got: list[Token] = []
    while True:
        outcome = launch.outcome
        fresh = launch.poll(0.1)
        got += fresh
        if outcome is not None and not fresh:
            break
    decode = (len(got) - 1) / (got[-1].t_ns - got[0].t_ns) * 1e9
    return Speed(len(prompt) / outcome.prefill_ns * 1e9, decode)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: `low` and `high` are the extremes of the rounds."""

    what: str
    value: float
    low: float
    high: float
    must: float
    unit: str
    at_most: bool = False

    @property
    def reached(self) -> bool:
        return self.value <= self.must if self.at_most else self.value >= self.must


def row(what: str, samples: Sequence[float], must: float, unit: str, *, at_most: bool = False) -> Row:
    return Row(what, median(samples), min(samples), max(samples), must, unit, at_most)


def compare(model: Model, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """Both engines, round by round; the rows that need the peer, and what it says of itself."""
    threads = usable_cores()
    peer = Peer(model.source, threads)
    ours = open_backend("cpu", model)
    single = open_backend("cpu", model, options={"threads": 1})
    decode_prompt, prefill_prompt = prompt_tokens(model, CONTEXT), prompt_tokens(model, PREFILL)
    samples: dict[str, list[float]] = {
        name: [] for name in ("ours", "theirs", "ours_prefill", "theirs_prefill", "single", "gbs")
    }

    def measure(name: str) -> None:
        match name:
            case "ours":
                samples["ours"].append(run(ours, decode_prompt, TOKENS).decode)
                samples["ours_prefill"].append(run(ours, prefill_prompt, 2).prefill)
            case "theirs":
                samples["theirs"].append(peer.run(decode_prompt, TOKENS).decode)
                samples["theirs_prefill"].append(peer.run(prefill_prompt, 2).prefill)
            case "single":
                samples["single"].append(run(single, decode_prompt, TOKENS).decode)
            case _:
                samples["gbs"].append(measure_read_gbs())

    order = ["ours", "theirs", "single", "gbs"]
    try:
        for name in order:  # warm-up
            measure(name)
        for values in samples.values():
            values.clear()
        for _ in range(repeats):
            for name in order:
                measure(name)
            order.reverse()
    finally:
        peer.close()
        ours.close()
        single.close()

    bytes_a_token = mean_bytes_per_token(model.config, CONTEXT, TOKENS).total
    best_read = max(samples["gbs"])

    def ratio(a: str, b: str) -> list[float]:
        return [x / y for x, y in zip(samples[a], samples[b], strict=True)]

    return [
        row("decode, context 256", samples["ours"], MUST["decode"], "tok/s"),
        row("  over llama.cpp", ratio("ours", "theirs"), MUST["decode_ratio"], "x"),
        row(
            f"  MBU of {best_read:.1f} GB/s",
            [s * bytes_a_token / best_read / 1e9 for s in samples["ours"]],
            MUST["mbu"],
            "",
        ),
        row("prefill, 512 tokens", samples["ours_prefill"], MUST["prefill"], "tok/s"),
        row("  over llama.cpp", ratio("ours_prefill", "theirs_prefill"), MUST["prefill_ratio"], "x"),
        row(f"1 to {threads} threads", ratio("ours", "single"), MUST_SCALING, "x"),
    ], {
        **peer.about,
        "rounds": samples,
    }


_COLD = """
import sys, time
start = time.perf_counter()
from engine.backends import open_backend
from engine.backends.base import Job
from engine.models import open_model
def resident(field):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(field)) / 1024
model = open_model(sys.argv[1])
backend = open_backend("cpu", model)
launch = backend.launch(Job(tuple(model.tokenizer.encode("def fibonacci(n):")), 64))
while not launch.poll(1.0): pass
first = time.perf_counter() - start
launch.close()
print(first, resident("RssAnon:"))
"""


def cold_start(repeats: int, weights_mb: float) -> list[Row]:
    """A new process each: imports to first token, and anonymous memory beyond the weights on the tapes."""
    seconds, memory = [], []
    for _ in range(repeats + 1):
        done = subprocess.run(
            [sys.executable, "-c", _COLD, MODEL], capture_output=True, text=True, check=True, cwd=ROOT
        )
        first, anonymous = (float(v) for v in done.stdout.split())
        seconds.append(first)
        memory.append(anonymous - weights_mb)
    return [
        row("load to first token", seconds[1:], MUST_LOAD_S, "s", at_most=True),
        row("memory above weights", memory[1:], MUST_MEMORY_MB, "MB", at_most=True),
    ]


def print_table(rows: Sequence[Row]) -> None:
    print(f"{'what':<24} {'median':>9} {'low':>9} {'high':>9}  {'must':>9}")
    for r in rows:
        sign = "<=" if r.at_most else ">="
        verdict = "reached" if r.reached else "MISSED"
        figures = f"{r.value:>9.2f} {r.low:>9.2f} {r.high:>9.2f}"
        print(f"{r.what:<24} {figures}  {sign} {r.must:<6g} {r.unit:<5} {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description="The CPU kernel beside llama.cpp on the same file.")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the order turns in each")
    parser.add_argument("--out", type=Path, help="the measurement file (benchmarks/ by default)")
    arguments = parser.parse_args()
    try:
        model = open_model(MODEL)
        rows, peer = compare(model, arguments.repeats)
        weights_mb = mean_bytes_per_token(model.config, CONTEXT, TOKENS).weights / 2**20
        rows += cold_start(arguments.repeats, weights_mb)
        backend = open_backend("cpu", model)
        measurement = run_point(backend, model, Point(CONTEXT, TOKENS, arguments.repeats))
        backend.close()
    except (EngineError, SetupError) as error:
        print(f"bench_cpu: {error}", file=sys.stderr)
        return 2
    print_table(rows)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    out = arguments.out or ROOT / "benchmarks" / f"{day}-cpu-{MODEL}.json"
    data = measurement.to_dict()
    data["environment"]["peer"] = peer
    out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return 0 if all(r.reached for r in rows) and measurement.verified.tokens_equal else 1


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s in all")
    sys.exit(code)
