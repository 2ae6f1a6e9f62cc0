"""What this machine's processor calls itself and can do, and its memory, as far as the system tells."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def processor_name() -> str:
    """The processor's own name for itself, or its architecture where it has none."""
    return _first("model name").strip() or platform.processor() or platform.machine()


def processor_features() -> frozenset[str]:
    """Instruction-set flags of the first core; empty where the system reports none."""
    return frozenset((_first("flags") or _first("Features")).split())


def memory_bytes() -> int | None:
    """All of the machine's memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def allowed_memory_bytes() -> int | None:
    """What this process may take of it: less than all of it in a container with a limit."""
    whole = memory_bytes()
    try:
        limit = int(_CONTAINER_LIMIT.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no container, or "max"
        return whole
    return limit if whole is None else min(whole, limit)


def _first(key: str) -> str:
    """The value of the first line of /proc/cpuinfo that has this key; empty if there is none."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return next((value for name, value in pairs if name.strip() == key), "")
