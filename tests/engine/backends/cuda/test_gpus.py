"""What a person reads about the GPUs of a machine. The driver is played."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.backends.cuda import gpus as module
from engine.backends.cuda.gpus import Survey, survey
from engine.errors import BackendUnavailable

OK, BROKEN = 0, 999


def played(
    *,
    apart: set[tuple[int, int]] = frozenset(),
    atomics: bool = True,
    status: int = OK,
    dead: set[int] = frozenset(),
):
    """A driver whose `dead` GPUs are listed and named but give no context."""
    return SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=OK),
        CUdevice_attribute=SimpleNamespace(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16),
        CUdevice_P2PAttribute=SimpleNamespace(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED=3),
        cuDeviceGet=lambda ordinal: (status, ordinal),
        cuDevicePrimaryCtxRetain=lambda device: (BROKEN if device in dead else OK, f"context {device}"),
        cuDevicePrimaryCtxRelease=lambda _device: (OK,),
        cuDeviceGetName=lambda _size, _device: (OK, b"NVIDIA H200\0\0"),
        cuDeviceGetAttribute=lambda _which, device: (OK, 132 - device),
        cuDeviceCanAccessPeer=lambda a, b: (OK, (a, b) not in apart),
        cuDeviceGetP2PAttribute=lambda _which, _a, _b: (OK, atomics),
    )


def surveyed(monkeypatch: pytest.MonkeyPatch, count: int, **more) -> Survey:
    monkeypatch.setattr(module, "load", lambda: played(**more))
    monkeypatch.setattr(module, "device_count", lambda: count)
    return survey()


def test_one_gpu_has_a_name_and_its_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(surveyed(monkeypatch, 1)) == "NVIDIA H200, 132 SMs"


@pytest.mark.parametrize(("atomics", "link"), [(True, "NVLink"), (False, "PCIe")])
def test_gpus_that_all_reach_each_other_say_over_what(
    monkeypatch: pytest.MonkeyPatch, atomics: bool, link: str
) -> None:
    found = surveyed(monkeypatch, 4, atomics=atomics)
    assert str(found) == f"4 x NVIDIA H200, 129 SMs each; every GPU reaches every other over {link}"


def test_gpus_that_do_not_reach_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = str(surveyed(monkeypatch, 4, apart={(0, 3), (3, 0)}))
    assert "GPU 0 cannot reach the memory of GPU 3 and 1 more such pairs" in words
    assert "needs peer access" in words


def test_a_gpu_that_fell_off_its_bus_is_not_counted_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = str(surveyed(monkeypatch, 4, dead={1}, apart={(0, 1), (1, 0)}))
    assert words.startswith("3 x NVIDIA H200, 129 SMs each; every GPU reaches every other over NVLink; ")
    assert "GPU 1 does not answer (cuDevicePrimaryCtxRetain failed: the NVIDIA driver says 999)" in words


def test_pairs_are_named_by_the_numbers_that_the_driver_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    words = str(surveyed(monkeypatch, 4, dead={1}, apart={(2, 3)}))
    assert "GPU 2 cannot reach the memory of GPU 3" in words


def test_a_machine_without_gpus_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match="lists no GPU"):
        surveyed(monkeypatch, 0)


def test_a_driver_that_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match=r"GPU 1 does not answer \(cuDeviceGet failed"):
        surveyed(monkeypatch, 2, status=BROKEN)
