"""What the dashboard shows of llama.cpp beside the CPU kernel, taken from the file of `make bench-cpu`.

    python -m tools.cpu_peer benchmarks/smollm2-135m-cpu.json

Both engines were timed in the same rounds, so that the peer belongs to that measurement and to no other:
benchmarks/peers/cpu.jsonl is written anew whenever that file is. A line for each place where the two cores
lay; timings during which they were moved are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.statistics import median
from tools.bench_cpu import Placement, Sample
from tools.setup import ROOT

ROWS = ROOT / "benchmarks" / "peers" / "cpu.jsonl"


def rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The peer's decode speed by placement, as `benchmarks/peers` has it. Raises KeyError without a peer."""
    peer = document["environment"]["peer"]
    samples = [Sample(**sample) for sample in peer["samples"]]
    for placement in Placement:
        speeds = [s.value for s in samples if s.name == "theirs" and s.placement is placement]
        if speeds:
            yield {
                "peer": f"llama.cpp, llama-cpp-python {peer['version']}, the same file in Q4_1, {placement}",
                "model": document["model"]["name"],
                "context": document["settings"]["context"],
                "device": document["devices"][0]["name"],
                "tok_s": round(median(speeds), 2),
                "samples": [round(speed, 2) for speed in speeds],
            }


def main(argv: list[str]) -> int:
    document = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in rows(document)), encoding="utf-8")
    print(ROWS.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
