"""What a GPU is asked for is given back, and its L2 cache keeps what it is asked to keep.

The driver is played: it counts what it gave.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from engine.backends.cuda import driver, read_bandwidth
from engine.backends.cuda.driver import Device
from engine.backends.cuda.read_bandwidth import ReadBandwidth
from engine.errors import BackendFailure

OK, BROKEN = SimpleNamespace(name="OK"), SimpleNamespace(name="BROKEN")
STREAM = 5
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


class CachingDriver(PlayedDriver):
    """Of two GPUs whose L2 caches keep what they are asked to, as far as `attributes` say."""

    CUdevice_attribute = bindings.CUdevice_attribute
    CUlimit = bindings.CUlimit
    CUaccessPolicyWindow = bindings.CUaccessPolicyWindow
    CUaccessProperty = bindings.CUaccessProperty
    CUstreamAttrID = bindings.CUstreamAttrID
    CUstreamAttrValue = bindings.CUstreamAttrValue

    def __init__(self, most_aside: int, most_in_window: int) -> None:
        super().__init__()
        which = bindings.CUdevice_attribute
        self.attributes = {
            which.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: most_aside,
            which.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE: most_in_window,
        }
        self.current = -1
        self.aside: dict[int, int] = {}
        """Bytes, by the GPU whose context has them."""
        self.windows: list[Any] = []

    def cuDeviceGetCount(self) -> tuple[Any, int]:
        return OK, 2

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, int]:
        return OK, ordinal

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, int]:
        return OK, device

    def cuCtxSetCurrent(self, context: int) -> tuple[Any]:
        self.current = context
        return (OK,)

    def cuDeviceGetAttribute(self, which: Any, _device: int) -> tuple[Any, int]:
        return OK, self.attributes[which]

    def cuCtxSetLimit(self, which: Any, size: int) -> tuple[Any]:
        assert which is bindings.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        if self.breaks == "cuCtxSetLimit":
            return (BROKEN,)
        self.aside[self.current] = size
        return (OK,)

    def cuStreamSetAttribute(self, stream: int, which: Any, value: Any) -> tuple[Any]:
        assert (stream, which) == (STREAM, bindings.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW)
        if self.breaks == "cuStreamSetAttribute":
            return (BROKEN,)
        self.windows.append(value.accessPolicyWindow)
        return (OK,)


def cached(
    monkeypatch: pytest.MonkeyPatch, most_aside: int = 1000, most_in_window: int = 4000
) -> CachingDriver:
    """A driver whose GPUs can set so many bytes aside and have windows of so many."""
    played = CachingDriver(most_aside, most_in_window)
    monkeypatch.setattr(driver, "load", lambda: played)
    return played


@pytest.mark.parametrize(("wanted", "aside"), [(600, 600), (1001, 1000)])
def test_no_more_of_the_cache_is_set_aside_than_the_gpu_allows(
    monkeypatch: pytest.MonkeyPatch, wanted: int, aside: int
) -> None:
    played = cached(monkeypatch)
    Device(0).set_aside_l2(wanted)
    assert played.aside == {0: aside}


def test_each_gpu_sets_a_part_of_its_own_cache_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever device the calls before went to."""
    played = cached(monkeypatch)
    devices = [Device(0), Device(1)]
    for device in devices:
        device.set_aside_l2(600)
    assert played.aside == {0: 600, 1: 600}


def test_a_stream_keeps_what_is_in_its_window_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    played = cached(monkeypatch)
    Device(0).keep_in_l2(STREAM, 4096, 800)
    [window] = played.windows
    assert (int(window.base_ptr), window.num_bytes, window.hitRatio) == (4096, 800, 1.0)
    kinds = bindings.CUaccessProperty
    assert window.hitProp is kinds.CU_ACCESS_PROPERTY_PERSISTING
    assert window.missProp is kinds.CU_ACCESS_PROPERTY_NORMAL


def test_a_window_is_no_larger_than_the_gpu_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    played = cached(monkeypatch)
    Device(0).keep_in_l2(STREAM, 4096, 4001)
    assert [window.num_bytes for window in played.windows] == [4000]


@pytest.mark.parametrize(("most_aside", "most_in_window"), [(0, 4000), (1000, 0), (0, 0)])
def test_a_gpu_that_keeps_nothing_has_no_window(
    monkeypatch: pytest.MonkeyPatch, most_aside: int, most_in_window: int
) -> None:
    played = cached(monkeypatch, most_aside, most_in_window)
    Device(0).keep_in_l2(STREAM, 4096, 800)
    assert played.windows == []


def test_a_gpu_that_sets_nothing_aside_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    played = cached(monkeypatch, most_aside=0)
    Device(0).set_aside_l2(600)
    assert played.aside == {}


def test_a_window_is_there_although_the_driver_sets_nothing_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    played = cached(monkeypatch)
    played.breaks = "cuCtxSetLimit"
    device = Device(0)
    device.set_aside_l2(600)
    device.keep_in_l2(STREAM, 4096, 800)
    assert played.aside == {}
    assert len(played.windows) == 1


def test_a_driver_that_refuses_a_window_ends_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    played = cached(monkeypatch)
    played.breaks = "cuStreamSetAttribute"
    Device(0).keep_in_l2(STREAM, 4096, 800)
    assert played.windows == []
