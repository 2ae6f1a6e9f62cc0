"""What this machine's processor calls itself and can do, and its memory, as far as the system tells."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


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
        limit = int((_CONTAINER / "memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no container, or "max"
        return whole
    return limit if whole is None else min(whole, limit)


def available_memory_bytes() -> int | None:
    """What of it nobody has taken, or would be given back: a file in the system's cache is. None as above."""
    known = [bytes_ for bytes_ in (_available_of_machine(), _available_of_container()) if bytes_ is not None]
    return min(known, default=None)


def _available_of_machine() -> int | None:
    try:
        return 1024 * int(_first("MemAvailable", _MEMINFO).removesuffix("kB"))
    except ValueError:
        return None


def _available_of_container() -> int | None:
    def read(name: str) -> str:
        return (_CONTAINER / f"memory.{name}").read_text(encoding="ascii")

    try:
        left = int(read("max")) - int(read("current"))
        kept = dict(line.split() for line in read("stat").splitlines())
        return max(0, left + int(kept["inactive_file"]) + int(kept["active_file"]))
    except (OSError, ValueError, KeyError):
        return None


def _first(key: str, source: Path = _CPUINFO) -> str:
    """The value of the first line of `source` that has this key; empty if there is none."""
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return next((value for name, value in pairs if name.strip() == key), "")
