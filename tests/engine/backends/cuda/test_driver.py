"""Which GPUs a model is opened on. The driver is played: no test machine has a GPU that can be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from engine.backends import cuda
from engine.backends.cuda import driver
from engine.backends.cuda.driver import reachable_devices
from engine.errors import BackendFailure, BackendUnavailable


@dataclass
class OneOfFour:
    """A GPU of four, some of which may be lost."""

    ordinal: int
    name: str = "NVIDIA H200"
    compute_capability: tuple[int, int] = (9, 0)
    lost: ClassVar[set[int]] = {1}

    def __post_init__(self) -> None:
        if self.ordinal in self.lost:
            raise BackendFailure(f"cuDevicePrimaryCtxRetain failed on GPU {self.ordinal}: CUDA_ERROR_UNKNOWN")


@pytest.fixture
def the_first_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneOfFour, "lost", {0})


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Device", OneOfFour)
    monkeypatch.setattr(driver, "device_count", lambda: 4)


def test_a_gpu_that_does_not_answer_is_left_out() -> None:
    assert [device.ordinal for device in reachable_devices(3)] == [0, 2, 3]


def test_no_more_gpus_are_woken_than_are_needed() -> None:
    assert [device.ordinal for device in reachable_devices(1)] == [0]


def test_too_few_that_answer_are_an_error_with_the_reason() -> None:
    with pytest.raises(
        BackendUnavailable,
        match=r"4 GPUs were asked for; of the 4 of this machine 3 answer; .* on GPU 1: CUDA_ERROR_UNKNOWN",
    ):
        reachable_devices(4)


@pytest.mark.usefixtures("the_first_is_lost")
def test_a_lost_first_gpu_does_not_take_the_backend_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_nvrtc", lambda: None)
    assert cuda.available() == (True, "NVIDIA H200 answers")


@pytest.mark.usefixtures("the_first_is_lost")
def test_virtual_gpus_are_parts_of_the_first_that_answers() -> None:
    assert [device.ordinal for device in reachable_devices(2, virtual=True)] == [1, 1]


def test_a_gpu_of_another_generation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Device", lambda ordinal: OneOfFour(ordinal, "NVIDIA A100", (8, 0)))
    there, why = cuda.available()
    assert not there
    assert why == "GPU 0 is a NVIDIA A100 (compute capability 8.0); the kernels need 9.0: H100, H200"
