"""The cuda backend: the monokernel on NVIDIA Hopper GPUs (kernels/cuda)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.backends.base import Loaded
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.compile import load_nvrtc
from engine.backends.cuda.driver import reachable_devices
from engine.backends.cuda.gpus import survey
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.support import require_hopper, require_support
from engine.errors import BackendUnavailable, EngineError
from engine.measuring.bandwidth import row_of
from engine.models.storage import Storage
from engine.progress import OnProgress, ignore_progress


def available() -> tuple[bool, str]:
    """Whether this machine has a Hopper GPU that answers, a driver and NVRTC. Wakes no GPU but the first."""
    try:
        first = reachable_devices(1)[0]
        require_hopper(first)
        load_nvrtc()
        return True, f"{first.name} answers"
    except EngineError as error:
        return False, str(error)


def describe() -> str:
    """All GPUs, and what joins them. Wakes every one."""
    return str(survey())


def storages(model: Loaded) -> Callable[[str], Storage]:
    require_support(model.config)
    return choose_storages(model.weights, shard(model.config, 1)).named


def read_gbs() -> tuple[float, str]:
    name = reachable_devices(1)[0].name
    row = row_of(name)
    if row is None:
        raise BackendUnavailable(f"what {name} reads is not known here; `bench` measures it")
    return 1000.0 * (row.read_tbs or row.stated_tbs), row.source


def memory_bytes() -> int:
    return reachable_devices(1)[0].total_bytes()


def open(
    model: Loaded, *, devices: int, options: Mapping[str, Any], progress: OnProgress = ignore_progress
) -> CudaBackend:
    """Raises BackendUnavailable for more GPUs than there are or the model takes, or for an unknown option."""
    return CudaBackend(model, options, devices=devices, progress=progress)
