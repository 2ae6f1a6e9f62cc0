"""The cuda backend: the monokernel on NVIDIA Hopper GPUs (kernels/cuda)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.backends.base import Loaded, LoadProgress, unheard
from engine.backends.cuda.backend import CudaBackend, require_hopper
from engine.backends.cuda.compile import load_nvrtc
from engine.backends.cuda.driver import answering
from engine.backends.cuda.gpus import survey
from engine.errors import EngineError


def available() -> tuple[bool, str]:
    """Whether this machine has a Hopper GPU that answers, a driver and NVRTC."""
    try:
        require_hopper(answering(1)[0])
        load_nvrtc()
        return True, str(survey())
    except EngineError as error:
        return False, str(error)


def open(
    model: Loaded, *, devices: int, options: Mapping[str, Any], progress: LoadProgress = unheard
) -> CudaBackend:
    """Raises BackendUnavailable for more GPUs than there are or the model takes, or for an unknown option."""
    return CudaBackend(model, options, devices=devices, progress=progress)
