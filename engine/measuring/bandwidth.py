"""Memory bandwidth: what the maker states for a device, and what this machine reads when measured."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Memory:
    """One kind of accelerator. `stated_tbs` is the maker's figure, TB/s (10^12 bytes) a device.

    `read_tbs` is what a plain streaming read reaches, where that is published or was measured; 0 if unknown.
    """

    name: str
    pattern: str
    """What a driver's device name matches (case ignored)."""
    stated_tbs: float
    read_tbs: float
    source: str


PUBLISHED_READ_GBS = {"H200": 30_700.0, "MI300X": 33_600.0}
"""GB/s of a node of 8 behind the ceilings that Kog published: about 80 % of the makers' figures."""

HARDWARE: tuple[Memory, ...] = (
    # The more specific name stands first: a driver's name is given to the first pattern that it matches.
    Memory(
        "H200",
        r"\bH200\b",
        4.8,
        4.52,
        "NVIDIA H200 datasheet; read by a kernel of this project: benchmarks/laneformer-2b-h200.json",
    ),
    Memory("H100 NVL", r"\bH100\b.*\bNVL\b", 3.9, 0.0, "NVIDIA H100 datasheet, NVL column"),
    Memory("H100 PCIe", r"\bH100\b.*\bPCIe\b", 2.0, 0.0, "NVIDIA H100 PCIe product brief"),
    Memory("H100 SXM", r"\bH100\b", 3.35, 0.0, "NVIDIA H100 datasheet, SXM column"),
    Memory("B200", r"\bB200\b", 8.0, 0.0, "NVIDIA DGX B200 datasheet: 64 TB/s over 8"),
    Memory(
        "Rubin", r"\bRubin\b", 22.0, 0.0, "NVIDIA's announcement at CES 2026 (13 when first shown in 2025)"
    ),
    Memory("MI300X", r"\bMI300X\b", 5.3, 4.2, "AMD MI300X datasheet; read: the 33.6 TB/s of 8 used by Kog"),
    Memory("MI450", r"\bMI45[05]X?\b", 19.6, 0.0, "AMD Financial Analyst Day 2025, MI455X"),
    Memory("A100 80GB", r"\bA100\b.*\b80GB\b", 2.039, 0.0, "NVIDIA A100 80GB datasheet, SXM column"),
)


def hardware(name: str) -> Memory:
    """The table's row for a short name ("H200"). Raises KeyError, naming the rows, if there is none."""
    for row in HARDWARE:
        if row.name.lower() == name.lower():
            return row
    raise KeyError(f"hardware {name!r} is not known; known are {', '.join(row.name for row in HARDWARE)}")


def row_of(device_name: str) -> Memory | None:
    """The table's row for the device that a driver calls `device_name`; None if it is not known."""
    return next((row for row in HARDWARE if re.search(row.pattern, device_name, re.IGNORECASE)), None)


def datasheet_gbs(device_name: str) -> float:
    """GB/s (10^9 bytes) that the maker states for the device a driver calls `device_name`; 0 if unknown."""
    row = row_of(device_name)
    return row.stated_tbs * 1000.0 if row else 0.0


def measure_read_gbs(threads: int | None = None, *, megabytes: int = 512, rounds: int = 20) -> float:
    """Read bandwidth of the CPU's memory, GB/s: the best of `rounds` passes over a buffer beyond the caches.

    Each thread sums its own slice as 64-bit words, which NumPy does without the interpreter lock. The best
    pass counts, as others lost time to someone else; the buffer must be several times the last-level cache.
    """
    threads = threads or usable_cores()
    slices = np.array_split(np.ones(megabytes * 1_000_000 // 8, np.int64), threads)
    total = sum(part.nbytes for part in slices)
    with ThreadPoolExecutor(threads) as pool:
        best = min(_pass_seconds(pool, slices) for _ in range(rounds + 1))  # the first also warms up
    return total / best / 1e9


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pass_seconds(pool: ThreadPoolExecutor, slices: list[NDArray[np.int64]]) -> float:
    start = time.perf_counter()
    list(pool.map(lambda part: part.sum(), slices))
    return time.perf_counter() - start
