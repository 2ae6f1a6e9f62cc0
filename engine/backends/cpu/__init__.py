"""The cpu backend: the monokernel of kernels/cpu, on this machine's cores or on virtual devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.backends.base import SYNCS, Loaded, require_features
from engine.backends.cpu.backend import DEFAULT_CACHE_MIB, FEATURES, CpuBackend, Options, default_threads
from engine.backends.cpu.build import compiler, library, runnable
from engine.backends.cpu.storages import choose_storages
from engine.backends.prefix_cache import OPTION as PREFIX_CACHE
from engine.backends.prefix_cache import budget_of
from engine.errors import BackendUnavailable
from engine.kv_cache import OPTION as CACHE
from engine.kv_cache import CacheFormat
from engine.measuring.bandwidth import measure_read_gbs
from engine.models.storage import Storage
from engine.processor import allowed_memory_bytes
from engine.progress import OnProgress, ignore_progress
from engine.settings import MOST_ROWS

_LIMITS = {"threads": (1, 256), "block": (0, 512), "link_latency_us": (0, 1_000_000), "rows": (1, MOST_ROWS)}
_CHOICES = {"sync": SYNCS, "pin": ("0", "1"), "isa": None, CACHE: tuple(CacheFormat)}


def available() -> tuple[bool, str]:
    best = runnable()[0]
    if library(best).exists():
        return True, f"native code for {best.name}"
    program = compiler()
    if program is None:
        return False, "there is no C++ compiler: install g++ or clang++"
    return True, f"native code for {best.name}, compiled by {program} on first use"


def describe() -> str:
    return available()[1]


def storages(model: Loaded) -> Callable[[str], Storage | None]:
    require_features(model.config, FEATURES, CpuBackend.name)
    return choose_storages(model.weights, 1).named


def read_gbs() -> tuple[float, str]:
    return measure_read_gbs(), "measured now"


def memory_bytes() -> int | None:
    return allowed_memory_bytes()


def open(
    model: Loaded, *, devices: int, options: Mapping[str, Any], progress: OnProgress = ignore_progress
) -> CpuBackend:
    """Options: threads, sync, link_latency_us, block, pin, isa, rows, cache, prefix_cache_mib.

    Several virtual devices have one row.

    Raises BackendUnavailable for an unknown option or a value that is not allowed, DoesNotFit if the weights
    do not fit into memory.
    """
    cache_bytes = budget_of(options, DEFAULT_CACHE_MIB)
    own = {name: value for name, value in options.items() if name != PREFIX_CACHE}
    return CpuBackend(model.weights, devices, _parse(own, devices), progress, cache_bytes=cache_bytes)


def _parse(options: Mapping[str, Any], devices: int) -> Options:
    values: dict[str, Any] = {"threads": default_threads(devices)}
    for name, value in options.items():
        if name in _LIMITS:
            values[name] = _number(name, value)
        elif name in _CHOICES:
            allowed = _CHOICES[name]
            if allowed is not None and str(value) not in allowed:
                raise BackendUnavailable(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
            values[name] = str(value) == "1" if name == "pin" else str(value)
        else:
            known = ", ".join([*_LIMITS, *_CHOICES, PREFIX_CACHE])
            raise BackendUnavailable(f"the backend cpu has no option {name!r}; it has {known}")
    if devices > 1 and values.get("rows", 1) > 1:
        raise BackendUnavailable(
            f"rows is {values['rows']} with {devices} devices; several virtual devices have one row:"
            " leave rows at 1, or devices"
        )
    return Options(**values)


def _number(name: str, value: Any) -> int | float:
    low, high = _LIMITS[name]
    try:
        number = float(value) if name == "link_latency_us" else int(value)
    except (TypeError, ValueError):
        raise BackendUnavailable(f"{name} is {value!r}; it must be a number") from None
    if not low <= number <= high:
        raise BackendUnavailable(f"{name} is {value}; allowed are {low} to {high}")
    return number
