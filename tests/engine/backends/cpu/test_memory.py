"""What the cpu backend tells of this machine's memory and cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.backends import open_backend
from engine.backends.cpu.backend import CpuBackend
from engine.measuring import environment
from engine.measuring.bandwidth import usable_cores
from engine.models.catalogue import open_model


@pytest.fixture(scope="module")
def pair() -> Iterator[CpuBackend]:
    """A model on two virtual devices."""
    backend = open_backend("cpu", open_model("random:tiny-llama"), devices=2)
    assert isinstance(backend, CpuBackend)
    yield backend
    backend.close()


@pytest.mark.slow
def test_virtual_devices_share_the_memory_evenly(pair: CpuBackend) -> None:
    first, second = pair.measure_bandwidth()
    assert first == second
    assert 0.1 < first < 10_000


@pytest.mark.skipif(usable_cores() < 2, reason="one core has no distance to another")
def test_the_distance_between_cores_is_some_nanoseconds(pair: CpuBackend) -> None:
    assert 1 < pair.core_distance_ns() < 10_000_000


def test_the_environment_says_where_the_cores_lie(pair: CpuBackend) -> None:
    assert environment.state(pair)["core_distance_ns"] >= 0
    assert "core_distance_ns" not in environment.state()
