"""A driver for tests: ready at once, 100 tok/s, and it ends where the first argument says so."""

from __future__ import annotations

import sys

from tools.bench_peers.peer import Facts, serve


def measure(repeats: int) -> list[float]:
    if sys.argv[1:] == ["ends in a turn"]:
        raise SystemExit("the kernel hung")
    return [100.0] * repeats


if __name__ == "__main__":
    if sys.argv[1:] == ["ends at once"]:
        raise SystemExit("no GPU here")
    serve(Facts("scripted 1.0", "a device", {"check": "none"}), measure)
