"""What the machine has that the tests run on."""

from __future__ import annotations

from engine.backends.cuda import available
from engine.backends.cuda.driver import device_count


def gpus() -> int:
    return device_count() if available()[0] else 0
