"""The cuda backend: the monokernel on NVIDIA Hopper GPUs (kernels/cuda)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.backends.base import Loaded
from engine.backends.cuda.backend import CudaBackend, require_hopper
from engine.backends.cuda.compile import load_nvrtc
from engine.backends.cuda.driver import reachable_devices
from engine.backends.cuda.gpus import survey
from engine.errors import EngineError
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


def open(
    model: Loaded, *, devices: int, options: Mapping[str, Any], progress: OnProgress = ignore_progress
) -> CudaBackend:
    """Raises BackendUnavailable for more GPUs than there are or the model takes, or for an unknown option."""
    return CudaBackend(model, options, devices=devices, progress=progress)
