"""`python -m tools.bench_peers`."""

from tools.bench_peers.command import main

if __name__ == "__main__":
    raise SystemExit(main())
