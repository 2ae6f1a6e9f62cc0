"""The cuda backend: a model on one Hopper GPU, one launch a request."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import DeviceInfo, Job, Loaded, Topology, check_job, check_sequence
from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.constants import Tuning, header, make_layout, slots_in_flight
from engine.backends.cuda.driver import Device
from engine.backends.cuda.launch import CudaLaunch, Machine, Work, work_of
from engine.backends.cuda.memory import load_model
from engine.bandwidth import datasheet_gbs
from engine.errors import BackendUnavailable, RequestError
from engine.tape import plan, validate
from engine.weights import DType

_SCORE_TOKENS = 256
"""Tokens scored in one launch: their logits stay on the device until it ends."""
_READ_BYTES = 4 << 30

Report = Callable[[str], None]


class CudaBackend:
    """Implements engine.backends.base.Backend. Options: Tuning's fields, and `context`, the cache's size."""

    name = "cuda"

    def __init__(self, model: Loaded, options: Mapping[str, Any], *, report: Report | None = None) -> None:
        self.config = model.config
        self._report = report or (lambda _text: None)
        tuning, context = _tuning(options)
        self.device = Device(0)
        _require_hopper(self.device)
        native: DType = "bf16" if model.weights.native == "bf16" else "f16"
        made = plan(model.config, self.device.attribute("MULTIPROCESSOR_COUNT"), tuning.seats)
        validate(made, tuning.slot_units)
        self.layout = make_layout(made, native, tuning, context)
        self._kernels: dict[bool, Any] = {}
        memory = load_model(self.device, self.layout, model.weights, self._packing)
        self.machine = Machine(
            self.device,
            self.layout,
            memory,
            self._kernel,
            slots_in_flight=slots_in_flight(made, tuning),
            blocks_a_split=tuning.blocks_a_split,
        )
        self._kernel(tuning.profile)
        name = self.device.name
        self.topology = Topology(
            devices=(DeviceInfo(name, datasheet_gbs(name)),), lanes=model.config.lanes.count
        )
        self._current: CudaLaunch | None = None
        self._lock = threading.Lock()

    def _packing(self, what: str, done: int, total: int) -> None:
        if done == total:
            self._report(f"{what}: {total / 1e9:.2f} GB")

    def _kernel(self, profile: bool) -> Any:
        if profile not in self._kernels:
            tuned = replace(self.layout.tuning, profile=profile)
            layout = replace(self.layout, tuning=tuned)
            compiled = compile_kernel("monokernel.cu", header(layout), progress=self._report)
            found = self.device.module(compiled.image, {"monokernel": layout.shared_bytes})
            self._kernels[profile] = found["monokernel"]
        return self._kernels[profile]

    def launch(self, job: Job) -> CudaLaunch:
        check_job(self.config, job)
        context = min(self.config.context, self.layout.capacity)
        if len(job.tokens) >= context:
            raise RequestError(
                f"the prompt has {len(job.tokens)} tokens; this backend's cache holds {context}: shorten it"
                " or raise the option context"
            )
        return self._start(work_of(job, context))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each of `tokens`: [len(tokens), vocab], by the decode path."""
        check_sequence(self.config, tokens)
        result = [
            self._scored(
                Work(tokens[: start + _SCORE_TOKENS], 1, first=start, prefill_end=start, keep_logits=True)
            )
            for start in range(0, len(tokens), _SCORE_TOKENS)
        ]
        joined: NDArray[np.float32] = np.concatenate(result)
        return joined

    def logits_after_prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after the last of `tokens`, the others having gone through prefill: [vocab]."""
        check_sequence(self.config, tokens)
        last = len(tokens) - 1
        launch = self._start(Work(tokens, 1, prefill_end=last))
        launch.close()
        launch.wait()
        rows = self._scored(Work(tokens, 1, first=last, prefill_end=last, keep_logits=True))
        return rows.reshape(-1)

    def _scored(self, work: Work) -> NDArray[np.float32]:
        launch = self._start(work)
        try:
            launch.wait()
            scored: NDArray[np.float32] = launch.logits()
            return scored
        finally:
            launch.close()

    def _start(self, work: Work) -> CudaLaunch:
        with self._lock:
            if self._current is not None and not self._current.ended:
                raise RequestError("the backend cuda runs one launch at a time; close the other one first")
            self._current = CudaLaunch(self.machine, work)
            return self._current

    def measure_bandwidth(self) -> tuple[float, ...]:
        """GB/s (10^9 bytes) that a plain kernel reads from memory: best of ten over 4 GiB."""
        device = self.device
        device.activate()
        kernel = device.module(compile_kernel("pack.cu", "").image, {"read_all": 0})["read_all"]
        buffer, sink = device.allocate(_READ_BYTES, zero=True), device.allocate(16)
        arguments = (ctypes.c_uint64(buffer), ctypes.c_uint64(_READ_BYTES // 16), ctypes.c_uint64(sink))
        begin, end = (device.call("cuEventCreate", 0) for _ in range(2))
        best = 0.0
        for _ in range(10):
            device.call("cuEventRecord", begin, 0)
            device.launch(kernel, (self.layout.plan.cores * 8, 1), 256, 0, arguments)
            device.call("cuEventRecord", end, 0)
            device.call("cuEventSynchronize", end)
            best = max(best, _READ_BYTES / device.call("cuEventElapsedTime", begin, end) / 1e6)
        device.free(buffer)
        device.free(sink)
        return (best,)

    def close(self) -> None:
        with self._lock:
            if self._current is not None:
                self._current.close()
                self._current = None
            self.device.close()


def _tuning(options: Mapping[str, Any]) -> tuple[Tuning, int | None]:
    known = {f.name for f in fields(Tuning)}
    unknown = sorted(set(options) - known - {"context"})
    if unknown:
        raise BackendUnavailable(
            f"the backend cuda has no option {unknown[0]!r}; it has context, {', '.join(sorted(known))}"
        )
    chosen = {name: value for name, value in options.items() if name in known}
    return Tuning(**chosen), options.get("context")


def _require_hopper(device: Device) -> None:
    major, minor = device.compute_capability
    if major != 9:
        raise BackendUnavailable(
            f"GPU 0 is a {device.name} (compute capability {major}.{minor}); the kernels need 9.0: H100, H200"
        )
