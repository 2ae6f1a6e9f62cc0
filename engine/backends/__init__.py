"""Backends: numpy (the reference, everywhere), cpu (native code), cuda (Hopper GPUs).

A backend is a module here with six functions: `available() -> (usable, sentence)`; `describe()`, which says
in a sentence what a usable one finds on this machine and may take its time; `storages(model)`, how it would
keep each matrix on one device; `read_gbs()`, what one device reads, GB/s, and how that is known;
`memory_bytes()`, what one device may hold; and
`open(model, *, devices, options, progress) -> Backend`. Modules are imported when asked for, so that a
missing driver or compiler only matters to the one who wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from engine.backends.base import Backend, Loaded
from engine.errors import BackendUnavailable
from engine.models.storage import Storage
from engine.progress import OnProgress, ignore_progress

BACKENDS = ("numpy", "cpu", "cuda")
AUTO = "auto"
WITH_SYNC = ("cpu", "cuda")
"""Those with the option `sync`, which takes one of engine.backends.base.SYNCS."""
LOADS_ALONE = ("cuda",)
"""Those that load a model only while no request runs: it is made in the same queues as launches."""
_MODULES = {name: f"{__name__}.{name}" for name in BACKENDS} | {"numpy": f"{__name__}.numpy_backend"}
_BEST_FIRST = ("cuda", "cpu", "numpy")


def open_backend(
    name: str,
    model: Loaded,
    *,
    devices: int = 1,
    options: Mapping[str, Any] | None = None,
    rows: int = 1,
    progress: OnProgress = ignore_progress,
) -> Backend:
    """Loads `model` on a backend; "auto" takes the first usable one of cuda, cpu, numpy.

    The result's `name` says which one it became, its `rows` how many requests it takes at once: `rows`, or
    fewer where it has not so many. Raises BackendUnavailable if the name is unknown,
    this machine lacks what it needs, or it does not take so many devices or one of the options.
    """
    chosen = first_usable() if name == AUTO else name
    if chosen not in BACKENDS:
        raise BackendUnavailable(
            f"there is no backend {name!r}; there are {', '.join(BACKENDS)}, and {AUTO} for the best of them"
        )
    if devices < 1:
        raise BackendUnavailable(f"devices is {devices}; it must be at least 1")
    usable, why = _ask(chosen)
    if not usable:
        raise BackendUnavailable(f"the backend {chosen} cannot run here: {why}")
    asked = {**(options or {}), **({"rows": rows} if rows > 1 and devices == 1 else {})}
    opened = _load(chosen).open(model, devices=devices, options=asked, progress=progress)
    return cast("Backend", opened)


def first_usable() -> str:
    """What "auto" takes on this machine."""
    return next(name for name in _BEST_FIRST if _ask(name)[0])


def storages(name: str, model: Loaded) -> Callable[[str], Storage | None]:
    """How the backend keeps each matrix of `model` on one device, by its name; None: in FP32.

    Raises BackendUnavailable if it does not run such a model.
    """
    return cast("Callable[[str], Storage | None]", _load(name).storages(model))


def read_gbs(name: str) -> tuple[float, str]:
    """What one device of a usable backend reads from memory, GB/s, and how that is known."""
    gbs, source = _load(name).read_gbs()
    return float(gbs), str(source)


def memory_bytes(name: str) -> int | None:
    """All the memory of one device of a usable backend; None where that is not known."""
    return cast("int | None", _load(name).memory_bytes())


def wake(name: str) -> None:
    """Brings up the GPUs' driver if `open_backend` of this name will want it: on a thread beside other work.

    It takes half a second, and what it finds out is asked again by `open_backend`.
    """
    if name in (AUTO, "cuda"):
        _ask("cuda")


def availability() -> list[tuple[str, bool, str]]:
    """Each backend's name, whether it can run here, and one sentence saying why (not)."""
    return [_describe(name, *_ask(name)) for name in BACKENDS]


def _describe(name: str, usable: bool, why: str) -> tuple[str, bool, str]:
    return name, usable, str(_load(name).describe()) if usable else why


def _ask(name: str) -> tuple[bool, str]:
    try:
        usable, why = _load(name).available()
    except ImportError as error:
        return False, f"its module cannot be imported ({error})"
    return bool(usable), str(why)


def _load(name: str) -> ModuleType:
    module = import_module(_MODULES[name])
    if not hasattr(module, "available"):  # a folder without a module imports as an empty namespace
        raise ImportError(f"{module.__name__} is empty")
    return module
