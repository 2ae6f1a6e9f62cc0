"""What this machine's processor calls itself and can do, as far as the system tells."""

from __future__ import annotations

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def processor_name() -> str:
    """The processor's own name for itself, or its architecture where it has none."""
    return _first("model name").strip() or platform.processor() or platform.machine()


def processor_features() -> frozenset[str]:
    """Instruction-set flags of the first core; empty where the system reports none."""
    return frozenset((_first("flags") or _first("Features")).split())


def _first(key: str) -> str:
    """The value of the first line of /proc/cpuinfo that has this key; empty if there is none."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return next((value for name, value in pairs if name.strip() == key), "")
