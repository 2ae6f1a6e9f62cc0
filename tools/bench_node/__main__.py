"""`python -m tools.bench_node`."""

from tools.bench_node.command import main

if __name__ == "__main__":
    raise SystemExit(main())
