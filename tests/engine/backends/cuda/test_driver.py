"""Which GPUs a model is opened on. The driver is played: no test machine has a GPU that can be lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.backends.cuda import driver
from engine.backends.cuda.driver import answering
from engine.errors import BackendFailure, BackendUnavailable


@dataclass
class FourOfWhichTheSecondIsLost:
    ordinal: int

    def __post_init__(self) -> None:
        if self.ordinal == 1:
            raise BackendFailure("cuDevicePrimaryCtxRetain failed on GPU 1: CUDA_ERROR_UNKNOWN")


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Device", FourOfWhichTheSecondIsLost)
    monkeypatch.setattr(driver, "device_count", lambda: 4)


def test_a_gpu_that_does_not_answer_is_left_out() -> None:
    assert [device.ordinal for device in answering(3)] == [0, 2, 3]


def test_no_more_gpus_are_woken_than_are_needed() -> None:
    assert [device.ordinal for device in answering(1)] == [0]


def test_too_few_that_answer_are_an_error_with_the_reason() -> None:
    with pytest.raises(
        BackendUnavailable,
        match=r"4 GPUs were asked for; of the 4 of this machine 3 answer; .* on GPU 1: CUDA_ERROR_UNKNOWN",
    ):
        answering(4)
