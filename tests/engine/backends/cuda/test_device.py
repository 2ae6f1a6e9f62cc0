"""What a GPU is asked for is given back. The driver is played: it counts what it gave."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.cuda import driver, read_bandwidth
from engine.backends.cuda.driver import Device
from engine.backends.cuda.read_bandwidth import ReadBandwidth
from engine.errors import BackendFailure

OK, BROKEN = SimpleNamespace(name="OK"), SimpleNamespace(name="BROKEN")
GIVES = {"cuMemAlloc": "memory", "cuEventCreate": "event", "cuModuleLoadData": "module"}
TAKES = {"cuMemFree": "memory", "cuEventDestroy": "event", "cuModuleUnload": "module"}


class PlayedDriver:
    CUresult = SimpleNamespace(CUDA_SUCCESS=OK)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self.breaks = ""

    def cuGetErrorName(self, error: Any) -> tuple[Any, bytes]:
        return OK, error.name.encode()

    def __getattr__(self, name: str) -> Any:
        def call(*_arguments: Any) -> tuple[Any, ...]:
            if name == self.breaks:
                return (BROKEN,)
            if name in GIVES:
                self.held[GIVES[name]] += 1
                self.given[GIVES[name]] += 1
            if name in TAKES:
                self.held[TAKES[name]] -= 1
            values = {"cuEventElapsedTime": 1.0, "cuDeviceGetCount": 1}
            return OK, values.get(name, sum(self.given.values()))

        return call


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedDriver:
    played = PlayedDriver()
    monkeypatch.setattr(driver, "load", lambda: played)
    monkeypatch.setattr(read_bandwidth, "compile_kernel", lambda *_: SimpleNamespace(image=b""))
    return played


def test_reading_memory_again_keeps_one_module_and_nothing_else(played: PlayedDriver) -> None:
    reads = ReadBandwidth([Device(0)], 132)
    assert reads.measure() == reads.measure() == ((4 << 30) / 1e6,)
    assert {what: n for what, n in played.held.items() if n} == {"module": 1}
    assert played.given["event"] == 4


def test_reading_that_fails_gives_its_memory_back(played: PlayedDriver) -> None:
    played.breaks = "cuEventSynchronize"
    with pytest.raises(BackendFailure, match="cuEventSynchronize failed on GPU 0: BROKEN"):
        ReadBandwidth([Device(0)], 132).measure()
    assert played.given["memory"] == 2
    assert (played.held["memory"], played.held["event"]) == (0, 0)


def test_closing_a_gpu_unloads_its_modules_and_frees_its_memory(played: PlayedDriver) -> None:
    device = Device(0)
    device.module(b"", {"read_all": 0})
    device.allocate(64)
    device.close()
    assert played.given == {"module": 1, "memory": 1}
    assert not any(played.held.values())
