"""These tests need a Hopper GPU, NumPy, PyTorch and cuda-bindings, and nothing of the web.

Run them with `python -m pytest tests/gpu -c /dev/null --rootdir . --confcutdir tests/gpu -q`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.backends.cuda import available
from engine.backends.cuda.backend import CudaBackend
from tests.gpu.models import Model

_USABLE, _WHY = available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu" in str(item.path) and not _USABLE:
            item.add_marker(pytest.mark.skip(reason=f"no Hopper GPU here: {_WHY}"))


@pytest.fixture
def opened() -> Iterator[Callable[..., CudaBackend]]:
    """Opens models and closes them at the end of the test."""
    backends: list[CudaBackend] = []

    def open_model(model: Model, devices: int = 1, **options: Any) -> CudaBackend:
        backends.append(CudaBackend(model, options, devices=devices))
        return backends[-1]

    yield open_model
    for backend in backends:
        backend.close()
    gc.collect()
