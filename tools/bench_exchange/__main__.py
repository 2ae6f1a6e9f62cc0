"""`python -m tools.bench_exchange`."""

from tools.bench_exchange.command import main

if __name__ == "__main__":
    raise SystemExit(main())
