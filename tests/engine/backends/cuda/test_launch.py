"""What a launch holds on its GPU, and when it is given up. The GPU is played: none can be made to fail."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.cuda.launch import _PEER_POINTERS, CudaLaunch, Work
from engine.errors import BackendFailure

WORK = Work((1, 2, 3), 8)


class PlayedDevice:
    """Counts what is held on it, by kind; the call named by `refuses` fails."""

    ordinal = 0

    def __init__(self, refuses: str = "") -> None:
        self.held: Counter[str] = Counter()
        self._refuses = refuses
        self._next = 1000

    def _hold(self, what: str) -> int:
        if what == self._refuses:
            raise BackendFailure(f"{what} was refused")
        self.held[what] += 1
        self._next += 1
        return self._next

    def activate(self) -> None:
        pass

    def synchronise(self) -> None:
        pass

    def fill(self, *_arguments: Any) -> None:
        pass

    def upload(self, _pointer: int, _values: NDArray[Any]) -> None:
        if self._refuses == "upload":
            raise BackendFailure("upload was refused")

    def allocate(self, _size: int) -> int:
        return self._hold("memory")

    def free(self, _pointer: int) -> None:
        self.held["memory"] -= 1

    def mapped(self, size: int) -> tuple[NDArray[np.uint8], int]:
        return np.zeros(size, np.uint8), self._hold("pinned memory")

    def free_mapped(self, _view: NDArray[np.uint8]) -> None:
        self.held["pinned memory"] -= 1

    def stream(self) -> int:
        return self._hold("stream")

    def call(self, name: str, *_arguments: Any) -> None:
        if name == "cuStreamDestroy":
            self.held["stream"] -= 1


def machine(device: PlayedDevice, kernel: Any = lambda _profile: "kernel") -> Any:
    memory = SimpleNamespace(**dict.fromkeys(_PEER_POINTERS, 8), stop_flag=8, scores=8)
    layout = SimpleNamespace(
        sharding=SimpleNamespace(whole=SimpleNamespace(vocab=100)), tuning=SimpleNamespace(profile=False)
    )
    return SimpleNamespace(
        device=device,
        memory=memory,
        layout=layout,
        kernel=kernel,
        slots_in_flight=4,
        blocks_a_split=4,
        rank=0,
        team=[memory],
        serial=1,
        spin_budget_s=1.5,
    )


@pytest.mark.parametrize("refused", ["memory", "stream", "pinned memory", "upload"])
def test_a_launch_that_cannot_be_made_ready_holds_nothing(refused: str) -> None:
    device = PlayedDevice(refused)
    with pytest.raises(BackendFailure, match=f"{refused} was refused"):
        CudaLaunch(machine(device), WORK)
    assert not any(device.held.values())


def test_a_launch_whose_kernel_does_not_compile_holds_nothing() -> None:
    device = PlayedDevice()

    def broken(_profile: bool) -> None:
        raise BackendFailure("it does not compile")

    with pytest.raises(BackendFailure, match="it does not compile"):
        CudaLaunch(machine(device, broken), WORK)
    assert set(device.held) == {"memory", "pinned memory", "stream"}
    assert not any(device.held.values())
