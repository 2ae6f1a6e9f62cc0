"""The options with which the cuda backend is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from engine.backends.base import BARRIER, MAILBOX, SYNCS
from engine.backends.cuda.constants import Tuning
from engine.backends.prefix_cache import OPTION as PREFIX_CACHE
from engine.backends.prefix_cache import budget_of
from engine.errors import BackendUnavailable
from engine.kv_cache import OPTION as CACHE
from engine.kv_cache import CacheFormat, format_of
from engine.settings import MOST_ROWS
from engine.whole_numbers import is_whole

_LEAST = {"slots_in_flight": 1, "expert_slots_in_flight": 1, "quiet_slots": 0}
DEFAULT_CACHE_MIB = 8192
"""For the keys and values of recent sequences on all GPUs, unless an option says otherwise."""


@dataclass(frozen=True, slots=True)
class Options:
    tuning: Tuning
    context: int | None
    virtual: bool
    cache_bytes: int
    cache_is_given: bool = False
    rows: int = 1


def parse_options(options: Mapping[str, Any]) -> Options:
    tunable = {f.name for f in fields(Tuning)} - {"sync_barrier", "fp8_cache"}
    known = tunable | {"context", "sync", "virtual", "rows", CACHE, PREFIX_CACHE}
    unknown = sorted(set(options) - known)
    if unknown:
        raise BackendUnavailable(
            f"the backend cuda has no option {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
    for name, least in _LEAST.items():
        value = options.get(name)
        if value is not None and not is_whole(value, least):
            raise BackendUnavailable(f"{name} is {value!r}; it must be a whole number, at least {least}")
    sync = options.get("sync", MAILBOX)
    if sync not in SYNCS:
        raise BackendUnavailable(f"sync is {sync!r}; allowed are {', '.join(SYNCS)}")
    tuned = {name: value for name, value in options.items() if name in tunable}
    fp8 = format_of(options) is CacheFormat.FP8
    tuning = Tuning(**tuned, sync_barrier=sync == BARRIER, fp8_cache=fp8)
    context = options.get("context")
    if context is not None and (not isinstance(context, int) or context < 1):
        raise BackendUnavailable(f"context is {context!r}; it must be a number of tokens, at least 1")
    rows = options.get("rows", 1)
    if not is_whole(rows, 1, MOST_ROWS):
        raise BackendUnavailable(f"rows is {rows!r}; it must be a whole number from 1 to {MOST_ROWS}")
    return Options(
        tuning,
        context,
        bool(options.get("virtual", False)),
        budget_of(options, DEFAULT_CACHE_MIB),
        PREFIX_CACHE in options,
        rows,
    )
