"""What one launch holds on its GPU and on the host for it, given back together and lent to the next one.

To pin memory, to make streams and to free memory takes the driver a millisecond or two: more than a short
prompt takes the GPU.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.driver import Device

KEPT_BYTES = 1 << 20
"""A larger piece (logits, a profile) goes back to the driver."""
_LEAST_BYTES = 4096

Mapped = tuple[NDArray[np.uint8], int]
"""Pinned host memory that the device writes to, and the device's address of it."""


class ResourcePool:
    """What launches have given back, by size. Of one device; `Device.close` frees what is in it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory: defaultdict[int, list[int]] = defaultdict(list)
        self.mapped: defaultdict[int, list[Mapped]] = defaultdict(list)
        self.streams: list[Any] = []


class LaunchResources:
    """Memory, streams and pinned host memory. The device must be current on the calling thread."""

    def __init__(self, pool: ResourcePool) -> None:
        self._pool, self._device = pool, pool.device
        self._memory: list[tuple[int, int]] = []
        self._streams: list[Any] = []
        self._mapped: list[Mapped] = []

    def memory(self, size: int) -> int:
        """The address of `size` bytes on the device, whatever is in them."""
        whole = _round_up(size)
        kept = self._pool.memory[whole]
        self._memory.append((whole, kept.pop() if kept else self._device.allocate(whole)))
        return self._memory[-1][1]

    def put(self, values: NDArray[Any]) -> int:
        """Device memory that holds `values`."""
        pointer = self.memory(values.nbytes)
        self._device.upload(pointer, values)
        return pointer

    def stream(self) -> Any:
        kept = self._pool.streams
        self._streams.append(kept.pop() if kept else self._device.stream())
        return self._streams[-1]

    def allocate_mapped(self, size: int) -> Mapped:
        """At least `size` bytes of zeros."""
        whole = _round_up(size)
        kept = self._pool.mapped[whole]
        self._mapped.append(kept.pop() if kept else self._device.allocate_mapped(whole))
        view, address = self._mapped[-1]
        view[:size] = 0
        return view[:size], address

    def release(self) -> None:
        """Gives everything back; a second time there is nothing left.

        What was asked of the streams is done before: a stop that came late must not reach the next launch.
        """
        self._device.activate()
        for stream in self._streams:
            self._device.call("cuStreamSynchronize", stream)
        while self._memory:
            whole, pointer = self._memory.pop()
            if whole > KEPT_BYTES:
                self._device.free(pointer)
            else:
                self._pool.memory[whole].append(pointer)
        while self._mapped:
            view, address = self._mapped.pop()
            if len(view) > KEPT_BYTES:
                self._device.free_mapped(view)
            else:
                self._pool.mapped[len(view)].append((view, address))
        while self._streams:
            self._pool.streams.append(self._streams.pop())


def _round_up(size: int) -> int:
    """Up to a power of two: launches of like lengths use the same pieces."""
    return max(_LEAST_BYTES, 1 << (size - 1).bit_length())
