"""The cpu backend: packs a model onto the tapes of a team of threads and runs requests on it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import (
    DeviceInfo,
    Job,
    OnStep,
    Topology,
    check_job,
    check_sequence,
    ignore_step,
    require_features,
)
from engine.backends.cpu import library
from engine.backends.cpu.build import digest
from engine.backends.cpu.contract import Team
from engine.backends.cpu.kept_caches import KeptCaches
from engine.backends.cpu.launch import CpuLaunch
from engine.backends.cpu.library import check
from engine.backends.cpu.packing import Packer, describe_shape
from engine.backends.cpu.storages import Storages, choose_storages
from engine.backends.host_room import require_memory
from engine.backends.prefix_cache import KeptSequence, PrefixCacheUse
from engine.backends.running import drain
from engine.errors import RequestError
from engine.kv_cache import CacheFormat, KeysAndValues
from engine.measuring.bandwidth import usable_cores
from engine.measuring.roofline import weight_bytes
from engine.models.config import Feature
from engine.models.storage import Storage
from engine.models.weights import Weights
from engine.processor import processor_name
from engine.progress import OnProgress, Progress, ignore_progress
from engine.timings import phases_of

FEATURES: frozenset[Feature] = frozenset(
    {
        Feature.QKV_BIAS,
        Feature.QK_NORM,
        Feature.LAYER_ROTATION,
        Feature.ROTATION_AMPLITUDE,
        Feature.POST_NORMS,
        Feature.GELU,
        Feature.EMBEDDING_SCALE,
        Feature.ATTENTION_SCALE,
        Feature.ATTENTION_CAP,
        Feature.LOGIT_CAP,
        Feature.OUT_BIAS,
        Feature.SINKS,
        Feature.CLAMPED_SWIGLU,
        Feature.EXPERTS,
    }
)
"""What the kernel computes beyond a plain Llama's arithmetic."""


DEFAULT_CACHE_MIB = 1024
"""For the keys and values of recent sequences, unless an option says otherwise."""


@dataclass(frozen=True, slots=True)
class Options:
    """`threads` of each virtual device; `parallelism` of a model without lanes on several devices is tp."""

    threads: int
    sync: Literal["mailbox", "barrier"] = "mailbox"
    link_latency_us: float = 0.0
    block: int = 0
    rows: int = 1
    pin: bool = True
    isa: str | None = None
    cache: str = CacheFormat.FP16.value


class CpuBackend:
    """Implements engine.backends.base.Backend."""

    name = "cpu"

    def __init__(
        self,
        weights: Weights,
        devices: int,
        options: Options,
        progress: OnProgress = ignore_progress,
        *,
        cache_bytes: int = DEFAULT_CACHE_MIB << 20,
    ) -> None:
        self.config = weights.config
        require_features(self.config, FEATURES, self.name)
        progress(Progress(0, 1, "library", "building the kernel"))
        self._library, target = library.open_library(options.isa)
        self._lock = threading.RLock()  # a launch found at its end gives its cache back
        self.rows = options.rows
        self._in_flight: list[CpuLaunch | None] = [None] * options.rows
        processor = DeviceInfo(f"{processor_name()} ({target.name}, {options.threads} threads)")
        lanes = self.config.lanes.count
        self.topology = Topology(
            devices=(processor,) * devices,
            parallelism="none" if devices == 1 else "dtp" if lanes > 1 else "tp",
            lanes=lanes,
            link="" if devices == 1 else _link(options.link_latency_us),
        )
        self.facts: dict[str, Any] = {**asdict(options), "isa": target.name, "kernel": digest()}
        self._storages = choose_storages(weights, devices)
        require_memory(self.config, weight_bytes(self.config, self.storage), self.name)
        self._kernel = self._create(devices, options, self._storages)
        self._caches = KeptCaches(
            self._library, self._kernel, self.config, cache_bytes, CacheFormat(options.cache)
        )
        try:
            Packer(self._library, self._kernel, weights, self._storages).pack(progress)
        except BaseException:
            self.close()
            raise

    def _create(self, devices: int, options: Options, storages: Storages) -> ctypes.c_void_p:
        shape = describe_shape(self.config, devices, storages)
        team = Team(
            devices=devices,
            threads=options.threads,
            rows=options.rows,
            barrier=options.sync == "barrier",
            pin=options.pin,
            block=options.block,
            fp8_cache=options.cache == CacheFormat.FP8,
            link_latency_ns=round(options.link_latency_us * 1000),
        )
        kernel = ctypes.c_void_p()
        code = self._library.ml_create(ctypes.byref(shape), ctypes.byref(team), ctypes.byref(kernel))
        check(code, f"preparing {self.config.name} for the CPU")
        return kernel

    def launch(self, job: Job) -> CpuLaunch:
        check_job(self.config, job)
        return self._launch(job)

    def _launch(
        self,
        job: Job,
        all_logits: NDArray[np.float32] | None = None,
        on_kept: Callable[[KeysAndValues], None] | None = None,
    ) -> CpuLaunch:
        """`on_kept` is given what the launch has left in its cache."""
        with self._lock:
            row = self._free_row(alone=job.is_measured)
            lease = self._caches.lend(job) if all_logits is None else self._caches.lend_unreserved()

            def keep(tokens: Sequence[int]) -> None:
                with self._lock:
                    self._in_flight[row] = None
                    if on_kept is not None:
                        on_kept(self._caches.read(lease, len(tokens)))
                    self._caches.take_back(lease, job, tokens)

            try:
                phases = phases_of(self.config.experts is not None)
                launch = CpuLaunch(
                    self._library,
                    self._kernel,
                    job,
                    row,
                    lease=lease,
                    on_end=keep,
                    all_logits=all_logits,
                    phases=phases,
                )
            except BaseException:
                keep(())
                raise
            self._in_flight[row] = launch
            return launch

    def logits(
        self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step
    ) -> NDArray[np.float32]:
        """As engine.backends.base.Backend says; beside launches in flight if a row is free."""
        return self._score(tokens, scored_from, on_step)

    def logits_and_cache(
        self, tokens: Sequence[int], scored_from: int = 0
    ) -> tuple[NDArray[np.float32], KeysAndValues]:
        kept: list[KeysAndValues] = []
        logits = self._score(tokens, scored_from, on_kept=kept.append)
        return logits, kept[0]

    def tokens_and_cache(self, job: Job) -> tuple[list[int], KeysAndValues]:
        check_job(self.config, job)
        kept: list[KeysAndValues] = []
        tokens = [token.id for token in drain(self._launch(job, on_kept=kept.append))]
        return tokens, kept[0]

    def _score(
        self,
        tokens: Sequence[int],
        scored_from: int,
        on_step: OnStep = ignore_step,
        on_kept: Callable[[KeysAndValues], None] | None = None,
    ) -> NDArray[np.float32]:
        check_sequence(self.config, tokens, scored_from)
        out = np.empty((len(tokens) - scored_from, self.config.vocab), np.float32)
        launch = self._launch(Job(tuple(tokens), 1), out, on_kept)
        try:
            while launch.outcome is None:
                on_step()
                launch.poll(1.0)
        finally:
            launch.close()
        return out

    def measure_bandwidth(self) -> tuple[float, ...]:
        """GB/s that all cores together read from memory; virtual devices share it."""
        gbs = ctypes.c_double()
        check(
            self._library.ml_read_bandwidth(usable_cores(), ctypes.byref(gbs)),
            "measuring the memory's bandwidth",
        )
        devices = len(self.topology.devices)
        return (gbs.value / devices,) * devices

    def core_distance_ns(self) -> float:
        """Nanoseconds that a cache line takes between the first two usable cores; 0 if there is only one."""
        distance = ctypes.c_double()
        check(self._library.ml_core_distance(ctypes.byref(distance)), "measuring the cores' distance")
        return distance.value

    def storage(self, name: str) -> Storage | None:
        return self._storages.named(name)

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        return self._caches.use

    def settle(self) -> None:
        for launch in list(self._in_flight):
            if launch is not None:
                launch.settle()

    def kept_sequences(self) -> list[KeptSequence]:
        return self._caches.sequences

    def state(self) -> dict[str, Any]:
        """For the environment: a virtual machine's cores may share a die now and lie apart a minute later."""
        return {"core_distance_ns": round(self.core_distance_ns(), 1)}

    def close(self) -> None:
        for launch in list(self._in_flight):
            if launch is not None:
                launch.close()
        with self._lock:
            if self._kernel:
                self._library.ml_destroy(self._kernel)
                self._kernel = ctypes.c_void_p()

    def _free_row(self, *, alone: bool) -> int:
        """A row for one more request; with `alone` no other may be in flight."""
        if not self._kernel:
            raise RequestError("the backend cpu has been closed; open it again")
        self.settle()
        running = [launch for launch in self._in_flight if launch is not None]
        if any(alone or launch.is_measured for launch in running):
            raise RequestError("what is measured runs alone; close the launches in flight first")
        if len(running) == self.rows:
            many = "one launch" if self.rows == 1 else f"{self.rows} launches"
            raise RequestError(f"the backend cpu runs {many} at a time; close the other one first")
        return self._in_flight.index(None)


def _link(latency_us: float) -> str:
    """What joins virtual devices."""
    return f"a link of {latency_us:g} us" if latency_us else "shared memory"


def default_threads(devices: int) -> int:
    """The cores that this process may use, dealt to the devices; at least one each."""
    return max(1, usable_cores() // devices)
