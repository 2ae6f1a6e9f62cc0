"""What one launch holds on its GPU and on the host for it, given back together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.driver import Device


class LaunchResources:
    """Memory, streams and pinned host memory. The device must be current on the calling thread."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: list[int] = []
        self._streams: list[Any] = []
        self._mapped: list[NDArray[np.uint8]] = []

    def memory(self, size: int) -> int:
        """The address of `size` bytes on the device."""
        self._memory.append(self._device.allocate(size))
        return self._memory[-1]

    def put(self, values: NDArray[Any]) -> int:
        """Device memory that holds `values`."""
        pointer = self.memory(values.nbytes)
        self._device.upload(pointer, values)
        return pointer

    def stream(self) -> Any:
        self._streams.append(self._device.stream())
        return self._streams[-1]

    def allocate_mapped(self, size: int) -> tuple[NDArray[np.uint8], int]:
        """Pinned host memory that the device writes to, and the device's address of it."""
        view, address = self._device.allocate_mapped(size)
        self._mapped.append(view)
        return view, address

    def release(self) -> None:
        """Gives everything back; a second time there is nothing left."""
        self._device.activate()
        while self._memory:
            self._device.free(self._memory.pop())
        while self._streams:
            self._device.call("cuStreamDestroy", self._streams.pop())
        while self._mapped:
            self._device.free_mapped(self._mapped.pop())
