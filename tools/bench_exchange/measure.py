"""How long an exchange between GPUs takes: exchange.cu.

Protocol: a launch of TIMED exchanges after UNTIMED ones, each of which needs the result of the one before;
its duration on the first GPU's clock over TIMED is a sample, `repeats` launches give a median. Results are
checked: one number that comes an exchange late shows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.contract import Control, Params
from engine.backends.cuda.driver import Device, reachable_devices
from engine.backends.cuda.sharding import MAX_RANKS
from engine.errors import BackendFailure, BackendUnavailable
from engine.measuring.statistics import median

EXCHANGE_KERNEL = str(Path(__file__).with_name("exchange.cu"))
UNTIMED, TIMED = 200, 2000
_THREADS = 256
_BUFFERS = 2
"""exchange.cu's."""
_STEP = 2.0**-10
_TOLERANCE = 1e-6
"""Relative: a GPU multiplies by 1 / count, which is inexact unless count is a power of two."""
_SPIN_BUDGET_S = 1.0
_CONTROL_BYTES = ctypes.sizeof(Control)


class _Exchanges(ctypes.Structure):
    """exchange.cu's Exchanges."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("mine", "gathered", "values", "times")),
        *((name, ctypes.c_int32) for name in ("count", "untimed", "timed", "gather")),
    )


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """Microseconds of one exchange of `floats` FP32 between `devices` GPUs: the median and all samples.

    `rows_us`: every SM has the sums of the rows it works on. `whole_us`: every SM has read the whole sum.
    `nccl_us`: an all-reduce by NCCL; None if it could not run, and `nccl` says why.
    """

    floats: int
    devices: int
    rows_us: float
    whole_us: float
    rows_samples: tuple[float, ...]
    whole_samples: tuple[float, ...]
    nccl_us: float | None = None
    nccl: str = ""


def measure(devices: int, sizes: Sequence[int], repeats: int, *, virtual: bool = False) -> list[ExchangeTime]:
    """Raises BackendUnavailable without so many GPUs that reach each other, BackendFailure if wrong."""
    if not 2 <= devices <= MAX_RANKS:
        raise BackendUnavailable(f"an exchange between {devices} GPUs: from 2 to {MAX_RANKS} take part")
    for floats in sizes:
        if floats < 4 or floats % 4:
            raise BackendUnavailable(f"a size of {floats} floats: exchanges are of multiples of 4 floats")
    team = _Team(devices, max(sizes), virtual)
    try:
        found = []
        for floats in sizes:
            rows, whole = (
                tuple(team.exchange(floats, gather) for _ in range(repeats)) for gather in (False, True)
            )
            found.append(ExchangeTime(floats, devices, median(rows), median(whole), rows, whole))
    finally:
        team.close()
    return found


class _Team:
    """GPUs that reach each other's memory, with mailboxes for the largest size."""

    def __init__(self, count: int, floats: int, virtual: bool) -> None:
        self._devices = reachable_devices(count, virtual=virtual)
        self._floats = floats
        self._params: list[Params] = []
        self._jobs: list[_Exchanges] = []
        self._kernels: list[Any] = []
        try:
            self._prepare(virtual)
        except BaseException:
            self.close()
            raise

    def _prepare(self, virtual: bool) -> None:
        count, floats = len(self._devices), self._floats
        sms = min(device.attribute("MULTIPROCESSOR_COUNT") for device in self._devices)
        self._blocks = sms // count if virtual else sms
        largest = 4 * _THREADS * self._blocks  # a thread has four neighbours, or none
        if floats > largest:
            raise BackendUnavailable(
                f"a size of {floats} floats: exchanges on {self._blocks} SMs are of at most {largest}"
            )
        image = compile_kernel(EXCHANGE_KERNEL, exchange_header(count)).image
        for device in self._devices:
            device.activate()
            for other in self._devices:
                device.reach(other)
            device.activate()
            self._kernels.append(device.module(image, {"exchange_bench": 0})["exchange_bench"])
            self._params.append(
                Params(control=device.allocate(_CONTROL_BYTES), spin_budget_ns=int(_SPIN_BUDGET_S * 1e9))
            )
            self._jobs.append(
                _Exchanges(
                    mine=device.allocate(_BUFFERS * count * floats * 4),
                    gathered=device.allocate(_BUFFERS * floats * 4),
                    values=device.allocate(floats * 4),
                    times=device.allocate(16),
                )
            )
        for rank, params in enumerate(self._params):
            params.rank = rank
            for peer, theirs in enumerate(self._jobs):
                params.peers[peer].mail = theirs.mine
                params.peers[peer].control = self._params[peer].control
        self._streams = [self._stream(device) for device in self._devices]

    @staticmethod
    def _stream(device: Device) -> Any:
        device.activate()
        return device.stream()

    def exchange(self, floats: int, gather: bool) -> float:
        """Microseconds of one exchange, over one launch."""
        count = len(self._devices)
        start = [np.arange(floats, dtype=np.float32) % 7 + rank for rank in range(count)]
        for device, params, job, values in zip(self._devices, self._params, self._jobs, start, strict=True):
            device.activate()
            job.count, job.untimed, job.timed, job.gather = floats, UNTIMED, TIMED, int(gather)
            device.fill(job.mine, _BUFFERS * count * self._floats * 4)
            device.fill(job.gathered, _BUFFERS * self._floats * 4)
            device.fill(params.control, _CONTROL_BYTES)
            device.upload(job.values, values)
            device.synchronise()
        for rank, device in enumerate(self._devices):
            device.activate()
            arguments = (self._params[rank], self._jobs[rank])
            grid, stream = (self._blocks, 1), self._streams[rank]
            device.launch(self._kernels[rank], grid, _THREADS, 0, arguments, stream=stream)
        for device, stream in zip(self._devices, self._streams, strict=True):
            device.activate()
            device.call("cuStreamSynchronize", stream)
        self._check_ended(floats)
        self._check(floats, np.mean(start, axis=0))
        begun, ended = self._devices[0].download(self._jobs[0].times, (2,), np.uint64).tolist()
        return float(ended - begun) / 1e3 / TIMED

    def _check_ended(self, floats: int) -> None:
        """Raises BackendFailure if the watchdog ended a launch: what it left is no result."""
        for rank, (device, params) in enumerate(zip(self._devices, self._params, strict=True)):
            device.activate()
            _, _, sm, warp, wait, *_ = device.download(params.control, (8,), np.uint32).tolist()
            if wait:  # the others only hear of it
                raise BackendFailure(
                    f"an exchange of {floats} floats between {len(self._devices)} GPUs stood still:"
                    f" GPU {rank}, SM {sm}, warp {warp} waited over {_SPIN_BUDGET_S:g} s for the others"
                )

    def _check(self, floats: int, mean: np.ndarray) -> None:
        wanted = mean + np.float32((UNTIMED + TIMED) * _STEP)
        for rank, (device, job) in enumerate(zip(self._devices, self._jobs, strict=True)):
            device.activate()
            found = device.download(job.values, (floats,), np.float32)
            if not np.allclose(found, wanted, rtol=_TOLERANCE, atol=0.0):
                worst = int(np.argmax(np.abs(found - wanted)))
                raise BackendFailure(
                    f"an exchange of {floats} floats between {len(self._devices)} GPUs is wrong on GPU"
                    f" {rank}: element {worst} is {found[worst]}, not {wanted[worst]}"
                )

    def close(self) -> None:
        for device in self._devices:
            device.activate()
            device.close()


def exchange_header(ranks: int) -> str:
    """What specialises EXCHANGE_KERNEL."""
    return f"#pragma once\nnamespace model {{\nconstexpr int RANKS = {ranks};\n}}\n"
