"""The CPU kernel beside llama.cpp, on the same file, in the same run: `make bench-cpu`.

    python -m tools.bench_cpu [--repeats 5] [--out FILE]

Each round times both engines, and the order turns from round to round, so that whatever else the machine does
falls on both. Prompts are the benchmark protocol's (engine.measuring.point). Speeds are medians of the
rounds, with the lowest and the highest. Both read the file's 4-bit weights.

A virtual machine's two cores may share a die, and with it one link to memory, or lie on two, and the host
moves them. So the distance between the cores is measured before and after each timing, and timings of one
placement make one table. Timings in which the placement changed are counted and left out.

Beside the table it writes a schema-2 measurement of the decode point, of more repeats, to benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, cast

from engine.backends import open_backend
from engine.backends.base import Backend, Job, Token
from engine.backends.cpu.backend import CpuBackend
from engine.backends.running import follow
from engine.errors import CheckpointError, EngineError
from engine.measuring.bandwidth import usable_cores
from engine.measuring.bench import run_point
from engine.measuring.measurement import BytesPerToken
from engine.measuring.point import Point, prompt_tokens
from engine.measuring.roofline import mean_bytes_per_token
from engine.measuring.statistics import median
from engine.models.catalogue import Model, open_model
from engine.models.weights import storage_of
from tools.peers import make_peers
from tools.setup import ROOT, SetupError

MODEL = "smollm2-135m"
CONTEXT, TOKENS, PREFILL = 256, 128, 512
MUST = {"decode": 165.0, "decode_ratio": 1.4, "mbu": 0.82, "prefill": 800.0, "prefill_ratio": 3.0}
# Of AMD's dies: 20 to 60 ns within one, 150 to 300 between two.
APART_NS = 100.0
MUST_LOAD_S, MUST_MEMORY_MB, MUST_SCALING = 1.0, 150.0, 1.8
REPEATS = 120
"""Of the point that is written: what they find is for a quiet machine (docs/measuring.md)."""
PEER_TIMEOUT_S = 120.0
COLD_TIMEOUT_S = 120.0
OUT = ROOT / "benchmarks" / f"{MODEL}-cpu.json"


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of one run."""

    prefill: float
    decode: float


class Placement(StrEnum):
    """Where two cores lie, told by the time that a cache line takes from one to the other."""

    TOGETHER = "cores on one die"
    APART = "cores on two dies"

    @classmethod
    def of(cls, distance_ns: float) -> Placement:
        return cls.APART if distance_ns >= APART_NS else cls.TOGETHER


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing, and the cores' distance before and after it, ns."""

    name: str
    value: float
    before_ns: float
    after_ns: float

    @property
    def placement(self) -> Placement | None:
        """None if the cores were moved meanwhile."""
        before, after = Placement.of(self.before_ns), Placement.of(self.after_ns)
        return before if before is after else None


class Peer:
    """llama.cpp in a process of its own, asked line by line."""

    def __init__(self, model_file: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [make_peers(), ROOT / "tools" / "peer_llama_cpp_speed.py", model_file, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.about = self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, prompt: Sequence[int], tokens: int) -> Speed:
        times = self.ask(prompt, tokens)
        return Speed(len(prompt) / times["prefill_s"], (tokens - 1) / times["decode_s"])

    def ask(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """The times of one run, as tools/peer_llama_cpp_speed.py gives them."""
        assert self._process.stdin is not None  # noqa: S101 (Popen was given a pipe)
        self._process.stdin.write(json.dumps({"prompt": list(prompt), "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        """Raises CheckpointError if llama.cpp ended, or said nothing for PEER_TIMEOUT_S."""
        assert self._process.stdout is not None  # noqa: S101 (Popen was given a pipe)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PEER_TIMEOUT_S):
                raise CheckpointError(
                    f"llama.cpp has not answered for {PEER_TIMEOUT_S:g} s, where it needs 1 s: see what else"
                    " this machine does"
                )
        line = self._process.stdout.readline()
        if not line:
            raise CheckpointError("llama.cpp ended without an answer: see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def run(backend: Backend, prompt: Sequence[int], tokens: int) -> Speed:
    launch = backend.launch(Job(tuple(prompt), tokens))
    got: list[Token] = []
    outcome = follow(launch, 0.1, got.extend)
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


class Contest:
    """Both engines, ready to be timed in rounds."""

    def __init__(self, model: Model) -> None:
        self.threads = usable_cores()
        self.peer = Peer(model.source, self.threads)
        self.ours = cast("CpuBackend", open_backend("cpu", model))
        self._single = open_backend("cpu", model, options={"threads": 1})
        self._decode_prompt = prompt_tokens(model, CONTEXT)
        self._prefill_prompt = prompt_tokens(model, PREFILL)

    def close(self) -> None:
        self.peer.close()
        self.ours.close()
        self._single.close()

    def round(self, order: Sequence[str]) -> list[Sample]:
        """Everything in `order` once, the cores' distance measured before and after each."""
        samples = []
        before = self.ours.core_distance_ns()
        for name in order:
            value = self._measure(name)
            after = self.ours.core_distance_ns()
            samples.append(Sample(name, value, before, after))
            before = after
        return samples

    def _measure(self, name: str) -> float:
        match name:
            case "ours":
                return run(self.ours, self._decode_prompt, TOKENS).decode
            case "ours_prefill":
                return run(self.ours, self._prefill_prompt, 2).prefill
            case "theirs":
                return self.peer.run(self._decode_prompt, TOKENS).decode
            case "theirs_prefill":
                return self.peer.run(self._prefill_prompt, 2).prefill
            case "single":
                return run(self._single, self._decode_prompt, TOKENS).decode
            case _:
                return sum(self.ours.measure_bandwidth())


ORDER = ("gbs", "ours", "theirs", "single", "ours_prefill", "theirs_prefill")


def compare(model: Model, repeats: int) -> tuple[list[Sample], dict[str, Any]]:
    """All timings of all rounds, and what the peer says of itself."""
    contest = Contest(model)
    try:
        contest.round(ORDER)  # warm-up
        samples: list[Sample] = []
        for i in range(repeats):
            samples += contest.round(ORDER if i % 2 else ORDER[::-1])
        return samples, contest.peer.about
    finally:
        contest.close()


def quotient(what: str, a: Sequence[float], b: Sequence[float], must: float) -> Row:
    """Of the medians; between the extremes that any pair could give."""
    return Row(what, median(a) / median(b), min(a) / max(b), max(a) / min(b), must, "x")


def bytes_a_step(model: Model) -> BytesPerToken:
    """What a step of decode reads, of weights as the file holds them, which is how the backend keeps them."""
    return mean_bytes_per_token(model.config, CONTEXT, TOKENS, partial(storage_of, model.weights))


def rows_of(model: Model, samples: Sequence[Sample]) -> list[Row]:
    """The table of one placement. Raises KeyError if something was never timed in it."""
    bytes_a_token = bytes_a_step(model).total
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(sample.name, []).append(sample.value)
    ours, read = values["ours"], max(values["gbs"])
    mbu = [speed * bytes_a_token / read / 1e9 for speed in ours]
    prefill, prefill_must = values["ours_prefill"], MUST["prefill_ratio"]
    return [
        row(f"decode, context {CONTEXT}", ours, MUST["decode"], "tok/s"),
        quotient("  over llama.cpp", ours, values["theirs"], MUST["decode_ratio"]),
        row(f"  MBU of {read:.1f} GB/s", mbu, MUST["mbu"], ""),
        row(f"prefill, {PREFILL} tokens", prefill, MUST["prefill"], "tok/s"),
        quotient("  over llama.cpp", prefill, values["theirs_prefill"], prefill_must),
        quotient(f"1 to {usable_cores()} threads", ours, values["single"], MUST_SCALING),
    ]


_COLD = """
import sys, time
start = time.perf_counter()
from engine.backends import open_backend
from engine.backends.base import Job
from engine.models.catalogue import open_model
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
        first, anonymous = _cold_start()
        seconds.append(first)
        memory.append(anonymous - weights_mb)
    return [
        row("load to first token", seconds[1:], MUST_LOAD_S, "s", at_most=True),
        row("memory above weights", memory[1:], MUST_MEMORY_MB, "MB", at_most=True),
    ]


def _cold_start() -> tuple[float, float]:
    """Seconds to the first token, MB of anonymous memory. Raises CheckpointError if it takes too long."""
    command = [sys.executable, "-c", _COLD, MODEL]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=COLD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(
            f"{MODEL} has said nothing for {COLD_TIMEOUT_S:g} s, where it needs 1 s: see what else runs here"
        ) from error
    first, anonymous = (float(v) for v in done.stdout.split())
    return first, anonymous


def print_table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}")
    print(f"{'what':<24} {'median':>9} {'low':>9} {'high':>9}  {'must':>9}")
    for r in rows:
        sign = "<=" if r.at_most else ">="
        verdict = "reached" if r.reached else "MISSED"
        figures = f"{r.value:>9.2f} {r.low:>9.2f} {r.high:>9.2f}"
        print(f"{r.what:<24} {figures}  {sign} {r.must:<6g} {r.unit:<5} {verdict}")


def print_placements(model: Model, samples: Sequence[Sample]) -> bool:
    """A table a placement. Returns whether some placement reached every row."""
    reached = False
    for placement in Placement:
        mine = [s for s in samples if s.placement is placement]
        if {s.name for s in mine} < set(ORDER):
            print(f"\n{placement}: {len(mine)} of {len(samples)} timings, too few for a table")
            continue
        near, far = min(s.before_ns for s in mine), max(s.before_ns for s in mine)
        rows = rows_of(model, mine)
        print_table(f"{placement} ({near:.0f} to {far:.0f} ns): {len(mine)} of {len(samples)} timings", rows)
        reached |= all(r.reached for r in rows)
    if moved := sum(s.placement is None for s in samples):
        print(f"\n{moved} of {len(samples)} timings left out: the cores were moved during them")
    return reached


def rounds(text: str) -> int:
    """A number of rounds. Raises ArgumentTypeError if it is none."""
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"it is {text!r}; it must be a number from 1 to 1000")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="The CPU kernel beside llama.cpp on the same file.")
    parser.add_argument("--repeats", type=rounds, default=5, help="rounds; the order turns in each")
    parser.add_argument("--out", type=Path, default=OUT, help=f"the measurement file ({OUT.name} by default)")
    arguments = parser.parse_args()
    try:
        model = open_model(MODEL)
        samples, peer = compare(model, arguments.repeats)
        weights_mb = bytes_a_step(model).weights / 2**20
        cold = cold_start(arguments.repeats, weights_mb)
        backend = open_backend("cpu", model)
        measurement = run_point(backend, model, Point(CONTEXT, TOKENS, REPEATS))
        backend.close()
    except (EngineError, SetupError) as error:
        print(f"bench_cpu: {error}", file=sys.stderr)
        return 2
    reached = print_placements(model, samples)
    print_table("a new process, file cache warm", cold)
    out = arguments.out
    data = measurement.to_dict()
    data["environment"]["peer"] = {**peer, "samples": [asdict(s) for s in samples]}
    out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {out}")
    return 0 if reached and all(r.reached for r in cold) and measurement.verified.passed else 1


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s in all")
    sys.exit(code)
