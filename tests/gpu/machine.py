"""What the machine has that the tests run on."""

from __future__ import annotations

import pytest

from engine.backends.cuda import available
from engine.backends.cuda.driver import device_count


def gpus() -> int:
    return device_count() if available()[0] else 0


def require_gpus(count: int) -> None:
    """Skips the test where there are fewer."""
    if gpus() < count:
        pytest.skip(f"this machine has {gpus()} GPUs, the test needs {count}")
