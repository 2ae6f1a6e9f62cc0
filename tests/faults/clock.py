"""Runs a module as a machine would whose clock is off: `python -m tests.faults.clock SECONDS MODULE ARGS…`.

What Python calls the time is moved, for the standard library and for Django alike. Redis, SQLite and the
monotonic clock are not.
"""

from __future__ import annotations

import datetime
import runpy
import sys
import time


def main() -> None:
    ahead_s = float(sys.argv[1])
    true_time, true_ns = time.time, time.time_ns
    time.time = lambda: true_time() + ahead_s
    time.time_ns = lambda: true_ns() + int(ahead_s * 1e9)
    shift = datetime.timedelta(seconds=ahead_s)

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            return super().now(tz) + shift

        @classmethod
        def utcnow(cls) -> Shifted:
            return super().now(datetime.UTC).replace(tzinfo=None) + shift

    datetime.datetime = Shifted  # type: ignore[misc]
    module = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
