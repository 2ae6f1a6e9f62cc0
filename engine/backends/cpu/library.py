"""The calls of the CPU monokernel's library, as kernels/cpu/interface.h declares them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

from engine.backends.cpu.build import Target, build, runnable
from engine.backends.cpu.contract import ERRORS, Error, NativeJob, Shape, Span, Team
from engine.errors import BackendFailure, BackendUnavailable

WAITS = ("work", "wait_local", "wait_peer")
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "ml_create": (c_int32, (POINTER(Shape), POINTER(Team), POINTER(c_void_p))),
    "ml_destroy": (None, (c_void_p,)),
    "ml_pack": (c_int32, (c_void_p, c_int32, c_int32, c_int32, c_void_p, POINTER(c_float))),
    "ml_pack_expert": (
        c_int32,
        (c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, POINTER(c_float)),
    ),
    "ml_vector": (c_int32, (c_void_p, c_int32, c_int32, c_int32, POINTER(c_float))),
    "ml_launch": (c_int32, (c_void_p, POINTER(NativeJob))),
    "ml_poll": (c_int32, (c_void_p, c_int32, POINTER(c_int32), POINTER(c_int64), c_int32, c_int64)),
    "ml_stop": (None, (c_void_p, c_int32)),
    "ml_cache_add": (c_int32, (c_void_p, POINTER(c_int32))),
    "ml_cache_remove": (c_int32, (c_void_p, c_int32)),
    "ml_cache_copy": (c_int32, (c_void_p, c_int32, c_int32, c_int32)),
    "ml_cache_read": (c_int32, (c_void_p, c_int32, c_int32, POINTER(c_float), POINTER(c_float))),
    "ml_finish": (c_int32, (c_void_p, c_int32, POINTER(c_int64), *[POINTER(c_int32)] * 3)),
    "ml_profile": (c_int32, (c_void_p, POINTER(c_double), c_int32)),
    "ml_spans": (c_int32, (c_void_p, POINTER(Span), c_int32)),
    "ml_read_bandwidth": (c_int32, (c_int32, POINTER(c_double))),
    "ml_core_distance": (c_int32, (POINTER(c_double),)),
}


def find_target(name: str | None) -> Target:
    """The named build, or the best. Raises BackendUnavailable if this processor cannot run it."""
    usable = runnable()
    if name is None:
        return usable[0]
    for target in usable:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in usable)
    raise BackendUnavailable(f"isa is {name!r}; this processor runs {names}")


@cache
def load(path: Path) -> ctypes.CDLL:
    """A compiled library with its signatures set. Raises BackendUnavailable if it cannot be loaded."""
    try:
        native = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendUnavailable(f"{path} cannot be loaded: {error}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(native, name)
        function.restype, function.argtypes = result, arguments
    return native


def open_library(isa: str | None) -> tuple[ctypes.CDLL, Target]:
    target = find_target(isa)
    return load(build(target)), target


def check(code: int, doing: str) -> None:
    """Raises BackendFailure in words if a call did not return 0."""
    if code != Error.OK:
        raise BackendFailure(f"{doing} failed: {ERRORS.get(Error(code))}")
