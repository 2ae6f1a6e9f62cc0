"""What the dashboard shows of llama.cpp beside the CPU kernel, taken from the file of `make bench-cpu`.

    python -m tools.cpu_peer benchmarks/smollm2-135m-cpu.json

Both engines were timed in the same rounds, so that the peer belongs to that measurement and to no other:
benchmarks/peers/cpu.jsonl is written anew whenever that file is. A line for each place where the two cores
lay at least LEAST times; timings during which they were moved are left out. Exits 2 if the file holds nothing
of the peer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import MeasurementError
from engine.measuring.statistics import median
from tools.bench_cpu import Placement, Sample
from tools.setup import ROOT

ROWS = ROOT / "benchmarks" / "peers" / "cpu.jsonl"
LEAST = 5
"""Timings of a median."""


def rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The peer's decode speed by placement, as `benchmarks/peers` has it. Raises KeyError without a peer."""
    peer = document["environment"]["peer"]
    samples = [Sample(**sample) for sample in peer["samples"]]
    for placement in Placement:
        speeds = [s.value for s in samples if s.name == "theirs" and s.placement is placement]
        if len(speeds) >= LEAST:
            yield {
                "peer": f"llama.cpp, llama-cpp-python {peer['version']}, the same file in Q4_1, {placement}",
                "model": document["model"]["name"],
                "context": document["settings"]["context"],
                "device": document["devices"][0]["name"],
                "tok_s": round(median(speeds), 2),
                "samples": [round(speed, 2) for speed in speeds],
            }


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of `make bench-cpu`, one at least. Raises MeasurementError."""
    advice = "name a file that `make bench-cpu` wrote with the peer built"
    try:
        found = list(rows(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise MeasurementError(f"{path} cannot be read ({error}); {advice}") from error
    except (LookupError, TypeError) as error:
        raise MeasurementError(f"{path} has no timings of the peer ({error!r}); {advice}") from error
    if not found:
        raise MeasurementError(
            f"in {path} the peer has {LEAST} timings at no place of the cores; measure again"
        )
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.cpu_peer", description="Writes benchmarks/peers/cpu.jsonl out of a measurement."
    )
    parser.add_argument("file", type=Path, help="what `make bench-cpu` wrote")
    try:
        found = read(parser.parse_args(argv).file)
    except MeasurementError as error:
        print(f"cpu_peer: {error}", file=sys.stderr)
        return 2
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    print(ROWS.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
