"""Waiting for what threads and processes do: as long as a busy machine may need, no longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0, every_s: float = 0.02) -> None:
    """Looks until `condition` holds. Fails after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {timeout_s:g} s"
        time.sleep(every_s)
