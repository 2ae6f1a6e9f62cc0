"""How fast each GPU's memory is read."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.driver import Device

_BYTES = 4 << 30
_BLOCKS_AN_SM = 8
_THREADS = 256
_REPEATS = 10


class ReadBandwidth:
    """Reads the memory of `devices` with as many blocks as `sms` SMs hold; the kernel is loaded once."""

    def __init__(self, devices: Sequence[Device], sms: int) -> None:
        self._devices, self._sms = devices, sms
        self._kernels: dict[int, Any] = {}

    def measure(self) -> tuple[float, ...]:
        """GB/s (10^9 bytes) that a plain kernel reads from each GPU's memory: best of ten over 4 GiB.

        Virtual GPUs have an equal part each of what one has.
        """
        if len({device.ordinal for device in self._devices}) == 1:
            count = len(self._devices)
            return (self._measure_one(self._devices[0]) / count,) * count
        return tuple(self._measure_one(device) for device in self._devices)

    def _measure_one(self, device: Device) -> float:
        device.activate()
        kernel = self._kernel(device)
        with ExitStack() as stack:
            buffer = stack.enter_context(device.scratch(_BYTES))
            sink = stack.enter_context(device.scratch(16))
            device.fill(buffer, _BYTES)
            arguments = (ctypes.c_uint64(buffer), ctypes.c_uint64(_BYTES // 16), ctypes.c_uint64(sink))
            begin, end = stack.enter_context(device.event()), stack.enter_context(device.event())
            best = 0.0
            for _ in range(_REPEATS):
                device.call("cuEventRecord", begin, 0)
                device.launch(kernel, (self._sms * _BLOCKS_AN_SM, 1), _THREADS, 0, arguments)
                device.call("cuEventRecord", end, 0)
                device.call("cuEventSynchronize", end)
                best = max(best, _BYTES / device.call("cuEventElapsedTime", begin, end) / 1e6)
        return best

    def _kernel(self, device: Device) -> Any:
        if device.ordinal not in self._kernels:
            image = compile_kernel("pack.cu", "").image
            self._kernels[device.ordinal] = device.module(image, {"read_all": 0})["read_all"]
        return self._kernels[device.ordinal]
