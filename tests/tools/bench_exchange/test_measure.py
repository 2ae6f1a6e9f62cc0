"""What the exchange benchmark refuses and what it takes for wrong. The GPUs are played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import BackendFailure, BackendUnavailable
from tools.bench_exchange import measure as measuring
from tools.bench_exchange.measure import TIMED, UNTIMED, _Team, measure

CONTROL, VALUES, TIMES = 1, 2, 3
FLOATS = 28


class PlayedDevice:
    """`control` and `values` are what a launch left on it."""

    def __init__(
        self, values: NDArray[np.float32] | None = None, control: tuple[int, ...] = (0,) * 8
    ) -> None:
        self.closed = False
        self._left = {CONTROL: np.array(control, np.uint32), VALUES: values, TIMES: np.zeros(2, np.uint64)}

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **_more: None

    def attribute(self, which: str) -> int:
        return {"MULTIPROCESSOR_COUNT": 132}[which]

    def download(self, pointer: int, _shape: tuple[int, ...], _dtype: Any) -> Any:
        return self._left[pointer]

    def close(self) -> None:
        self.closed = True


def sums(count: int, exchanges: int) -> NDArray[np.float32]:
    """What `count` GPUs come to in FP32: a word loses its last bit, the sum is in the order of the ranks."""
    start = [np.arange(FLOATS, dtype=np.float32) % 7 + np.float32(rank) for rank in range(count)]
    for _ in range(exchanges):
        total = np.zeros(FLOATS, np.float32)
        for own in start:
            total += (own.view(np.uint32) & ~np.uint32(1)).view(np.float32)
        start = [total * np.float32(1 / np.float32(count)) + np.float32(2.0**-10)] * count
    return start[0]


def left(*devices: PlayedDevice) -> _Team:
    """A team whose launch has ended."""
    team = _Team.__new__(_Team)
    team._devices = list(devices)  # type: ignore[arg-type]
    team._floats, team._blocks = FLOATS, 132
    team._params = [SimpleNamespace(control=CONTROL) for _ in devices]  # type: ignore[misc]
    team._jobs = [
        SimpleNamespace(mine=0, gathered=0, values=VALUES, times=TIMES)  # type: ignore[misc]
        for _ in devices
    ]
    team._kernels = team._streams = [None for _ in devices]
    return team


@pytest.mark.parametrize("count", range(2, 9))
def test_right_sums_are_right_for_any_number_of_gpus(count: int) -> None:
    values = sums(count, UNTIMED + TIMED)
    assert left(*(PlayedDevice(values) for _ in range(count))).exchange(FLOATS, False) == 0.0


@pytest.mark.parametrize("count", range(2, 9))
def test_one_number_that_came_an_exchange_late_is_wrong(count: int) -> None:
    values = sums(count, UNTIMED + TIMED)
    late = values.copy()
    late[5] -= np.float32(2.0**-10 / count)
    devices = [PlayedDevice(values) for _ in range(count - 1)]
    with pytest.raises(BackendFailure, match=rf"is wrong on GPU {count - 1}: element 5"):
        left(*devices, PlayedDevice(late)).exchange(FLOATS, False)


def test_a_launch_that_the_watchdog_ended_stood_still_and_is_not_called_wrong() -> None:
    nothing = np.zeros(FLOATS, np.float32)
    told, stuck = (0, 1, 0, 0, 0, 0, 0, 0), (0, 1, 17, 3, 6, 5, 0, 0)
    with pytest.raises(BackendFailure, match=r"stood still: GPU 1, SM 17, warp 3 waited over 1 s"):
        left(PlayedDevice(nothing, told), PlayedDevice(nothing, stuck)).exchange(FLOATS, False)


def test_a_size_that_leaves_rows_out_is_refused_and_the_gpus_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [PlayedDevice(), PlayedDevice()]
    monkeypatch.setattr(measuring, "reachable_devices", lambda _count, **_: devices)
    with pytest.raises(
        BackendUnavailable, match=r"a size of 135172 floats: .* 132 SMs are of at most 135168"
    ):
        measure(2, [256, 135172], 1)
    assert [device.closed for device in devices] == [True, True]


@pytest.mark.parametrize("devices", [1, 9])
def test_a_number_of_gpus_that_cannot_exchange_is_refused(devices: int) -> None:
    with pytest.raises(BackendUnavailable, match="from 2 to 8 take part"):
        measure(devices, [256], 1)
