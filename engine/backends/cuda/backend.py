"""The cuda backend: a model on one or several Hopper GPUs, one launch on each a request."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from engine.backends.base import (
    BARRIER,
    MAILBOX,
    SYNCS,
    DeviceInfo,
    Job,
    Loaded,
    Topology,
    check_job,
    check_sequence,
    require_features,
)
from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.constants import Layout, Tuning, make_layout
from engine.backends.cuda.driver import Device, reachable_devices
from engine.backends.cuda.flight import slots_in_flight
from engine.backends.cuda.kept_caches import KeptCaches, Lease
from engine.backends.cuda.launch import CudaLaunch, DeviceContext, LaunchPlan, plan_launch
from engine.backends.cuda.memory import Memory, load_model
from engine.backends.cuda.model_header import header
from engine.backends.cuda.multi_gpu import MultiGpuLaunch
from engine.backends.cuda.room import fit_copy, require_room
from engine.backends.cuda.rows import Row, RowScheduler, Ways
from engine.backends.cuda.seats import kernels_for
from engine.backends.cuda.sharding import Sharding, shard
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.tape import plan, validate
from engine.backends.cuda.together import RowLaunches, several_layout, shares_launches
from engine.backends.prefix_cache import OPTION as PREFIX_CACHE
from engine.backends.prefix_cache import KeptSequence, PrefixCacheUse, budget_of
from engine.errors import BackendUnavailable, RequestError
from engine.measuring.bandwidth import datasheet_gbs
from engine.models.config import Feature, ModelConfig
from engine.models.storage import Storage
from engine.progress import OnProgress, Progress, ignore_progress
from engine.settings import MOST_ROWS

MONOKERNEL = "monokernel.cu"
_FEATURES = frozenset((Feature.QKV_BIAS, Feature.QK_NORM, Feature.LAYER_ROTATION, Feature.ROTATION_AMPLITUDE))
"""What the kernel computes beyond a plain Llama's arithmetic, in decode and in prefill."""
_EXPERT_FEATURES = _FEATURES | {Feature.EXPERTS, Feature.OUT_BIAS, Feature.SINKS, Feature.CLAMPED_SWIGLU}
"""What it computes for models with experts."""
_POST_NORM_FEATURES = _FEATURES | {
    Feature.POST_NORMS,
    Feature.GELU,
    Feature.EMBEDDING_SCALE,
    Feature.ATTENTION_SCALE,
    Feature.ATTENTION_CAP,
    Feature.LOGIT_CAP,
}
"""What it computes for models with norms after modules, whose prompts go through decode."""
_SCORE_TOKENS = 256
"""Tokens scored in one launch: their logits stay on the device until it ends."""
_READ_BYTES = 4 << 30
DEFAULT_CACHE_MIB = 8192
"""For the keys and values of recent sequences on all GPUs, unless an option says otherwise."""


def require_support(config: ModelConfig) -> None:
    """Raises BackendUnavailable if the model needs arithmetic that the kernels have not."""
    found = _EXPERT_FEATURES if config.experts else _POST_NORM_FEATURES if config.post_norms else _FEATURES
    require_features(config, found, CudaBackend.name)


class CudaBackend:
    """Implements engine.backends.base.Backend.

    Options: `sync`, "mailbox" or "barrier"; Tuning's other fields; `context`, the cache's size;
    `prefix_cache_mib`, memory for the keys and values of recent sequences; `virtual`, which gives all
    `devices` a part of the first GPU's SMs each, to try how a model lies on several GPUs where there is one;
    `rows`, how many requests it takes at once, which is 1 all the same where `shares_launches` says so.
    """

    name = "cuda"
    _scheduler: RowScheduler | None = None
    """With several rows: it runs all but what is measured."""

    def __init__(
        self,
        model: Loaded,
        options: Mapping[str, Any],
        *,
        devices: int = 1,
        progress: OnProgress = ignore_progress,
    ) -> None:
        self.config = model.config
        require_support(self.config)
        self._progress = progress
        chosen = _parse_options(options)
        self._devices = reachable_devices(devices, virtual=chosen.virtual)
        try:
            self._open(model, chosen)
            self._scheduler = self._open_rows(chosen) if self.rows > 1 else None
        except BaseException:  # whoever opens another model after this needs the memory
            self._close_devices()
            raise
        self._current: CudaLaunch | MultiGpuLaunch | None = None
        self._lent: tuple[Lease, Job] | None = None
        """What the current launch uses of the kept caches."""
        self._lock = threading.Lock()

    def _open(self, model: Loaded, chosen: _Options) -> None:
        devices = len(self._devices)
        for device in self._devices:
            require_hopper(device)
            for other in self._devices:
                device.reach(other)
        sms = min(device.attribute("MULTIPROCESSOR_COUNT") for device in self._devices)
        wanted = _layout(model, devices, sms, chosen)
        self.layout = fit_copy(wanted, self._free_for_weights(chosen.cache_bytes), self._progress)
        self.rows = chosen.rows if shares_launches(self.layout) else 1
        self._chosen = choose_storages(model.weights, self.layout.sharding)
        self.config = replace(self.config, context=min(self.config.context, self.layout.capacity))
        self._kernels: dict[tuple[int, bool, bool], Any] = {}
        self._readers: dict[int, Any] = {}
        memories = [self._load(model, rank) for rank in range(devices)]
        self.device_contexts = [
            DeviceContext(
                device,
                self.layout,
                memory,
                partial(self._kernel, rank),
                slots_in_flight=slots_in_flight(self.layout.plan, chosen.tuning),
                blocks_a_split=chosen.tuning.blocks_a_split,
                rank=rank,
                team=memories,
                rows=self.rows,
            )
            for rank, (device, memory) in enumerate(zip(self._devices, memories, strict=True))
        ]
        for rank in range(devices):
            self._kernel(rank, chosen.tuning.profile, False)
        in_flight = self.rows * memories[0].kv_bytes if self.rows > 1 and not chosen.cache_is_given else 0
        self._caches = KeptCaches(self._devices, memories[0].kv_bytes, chosen.cache_bytes + in_flight)
        self.topology = _topology(self._devices, self.layout.sharding)
        self.facts: dict[str, Any] = {
            "sync": BARRIER if chosen.tuning.sync_barrier else MAILBOX,
            "tuning": asdict(self.layout.tuning) | {"slot_units": self.layout.slot_units},
        } | ({"rows": self.rows} if self.rows > 1 else {})

    def _open_rows(self, chosen: _Options) -> RowScheduler:
        """Compiles the kernels of several requests, side by side, and makes room for the rows."""
        context = self.device_context
        layouts = {size: several_layout(self.layout, chosen.context, size) for size in kernels_for(self.rows)}
        headers = [_header(layout, chosen.tuning.profile, True) for layout in layouts.values()]
        self._progress(Progress(0, len(headers), "kernels", "compiling the kernels of several requests"))
        with ThreadPoolExecutor(len(headers)) as pool:
            images = [compiled.image for compiled in pool.map(partial(compile_kernel, MONOKERNEL), headers)]
        self.device.activate()
        shared = {"monokernel": self.layout.shared_bytes}
        kernels = {
            size: self.device.module(image, shared)["monokernel"]
            for size, image in zip(layouts, images, strict=True)
        }
        launches = RowLaunches(context, layouts, kernels)

        def lend(job: Job) -> Lease:
            with self._lock:
                self._take_back_ended()
                return self._caches.lend_row(job)

        def take_back(lease: Lease, job: Job, tokens: Sequence[int]) -> None:
            with self._lock:
                self._caches.take_back_row(lease, job, tokens)

        ways = Ways(self.layout.prefill_chunk, self.layout.tiles_from)
        return RowScheduler(
            self.config.context,
            ways,
            lend=lend,
            take_back=take_back,
            copy=self._caches.copy_row,
            begin=launches.begin,
        )

    def _free_for_weights(self, cache_bytes: int) -> Iterator[int]:
        """Bytes for each device beside kept sequences; virtual ones share what their GPU has."""
        here = Counter(device.ordinal for device in self._devices)
        for device in self._devices:
            device.activate()
            yield device.free_bytes() // here[device.ordinal] - cache_bytes // len(self._devices)

    @property
    def device(self) -> Device:
        """The first GPU."""
        return self._devices[0]

    @property
    def device_context(self) -> DeviceContext:
        """What launches share on the first GPU."""
        return self.device_contexts[0]

    def _load(self, model: Loaded, rank: int) -> Memory:
        device = self._devices[rank]
        device.activate()
        require_room(self.layout, device.free_bytes(), device.total_bytes(), self.rows)
        where = f" on GPU {rank + 1} of {len(self._devices)}" if len(self._devices) > 1 else ""

        def report(packed: Progress) -> None:
            self._progress(structs.replace(packed, what=packed.what + where))

        return load_model(device, self.layout, model.weights, report, rank)

    def _kernel(self, rank: int, profile: bool, filters: bool) -> Any:
        which = rank, profile, filters
        if which not in self._kernels:
            device = self._devices[rank]
            device.activate()
            header = _header(self.layout, profile, filters)
            compiled = compile_kernel(MONOKERNEL, header, progress=self._progress)
            found = device.module(compiled.image, {"monokernel": self.layout.shared_bytes})
            self._kernels[which] = found["monokernel"]
        return self._kernels[which]

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        with self._lock:
            self._take_back_ended()
            return self._caches.use

    def storage(self, name: str) -> Storage:
        return self._chosen.named(name)

    def kept_sequences(self) -> list[KeptSequence]:
        with self._lock:
            self._take_back_ended()
            return self._caches.sequences

    def state(self) -> dict[str, Any]:
        return {}

    def launch(self, job: Job) -> CudaLaunch | MultiGpuLaunch | Row:
        context = self.config.context
        if context <= len(job.tokens) < self.layout.sharding.whole.context:
            raise RequestError(
                f"the prompt has {len(job.tokens)} tokens; this backend's cache holds {context}: shorten it"
                f" or raise the option context, to {self.layout.sharding.whole.context} at most"
            )
        check_job(self.config, job)
        if self._scheduler is not None and not job.is_measured:
            return self._join(self._scheduler, job)
        with self._lock:
            self._require_idle()
            self._take_back()
            lease = self._caches.lend(job)
            if lease is None:
                return self._start_plan(plan_launch(job, context, prefills=self.layout.prefills))
            try:
                launch = self._start_plan(
                    plan_launch(job, context, lease.first, lease.buffers, prefills=self.layout.prefills)
                )
            except BaseException:
                self._caches.take_back(lease, job, ())
                raise
            self._lent = (lease, job)
            return launch

    def _join(self, scheduler: RowScheduler, job: Job) -> Row:
        with self._lock:
            if self._current is not None and not self._current.ended:
                raise RequestError("what is measured runs alone; close the launches in flight first")
            if scheduler.in_flight == self.rows:
                raise RequestError(
                    f"the backend cuda runs {self.rows} launches at a time; close the other one first"
                )
            self._caches.require_room()  # before anybody's launch ends for it
            row = scheduler.join(job)
        row.await_admission()
        return row

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each of `tokens`: [len(tokens), vocab], by the decode path."""
        check_sequence(self.config, tokens)
        result = [
            self._score(
                LaunchPlan(
                    tokens[: start + _SCORE_TOKENS], 1, first=start, prefill_end=start, keep_logits=True
                )
            )
            for start in range(0, len(tokens), _SCORE_TOKENS)
        ]
        joined: NDArray[np.float32] = np.concatenate(result)
        return joined

    def logits_after_prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after the last of `tokens`, the others having gone through prefill: [vocab]."""
        check_sequence(self.config, tokens)
        last = len(tokens) - 1
        plan = LaunchPlan(tokens, 1, prefill_end=last if self.layout.prefills else 0, keep_logits=True)
        scored: NDArray[np.float32] = self._score(plan)[-1]
        return scored

    def _score(self, launch_plan: LaunchPlan) -> NDArray[np.float32]:
        launch = self._start(launch_plan)
        try:
            launch.wait()
            scored: NDArray[np.float32] = launch.logits()
            return scored
        finally:
            launch.close()

    def _start(self, launch_plan: LaunchPlan) -> CudaLaunch | MultiGpuLaunch:
        with self._lock:
            self._require_idle()
            self._take_back()
            return self._start_plan(launch_plan)

    def _require_idle(self) -> None:
        if self._current is not None and not self._current.ended:
            raise RequestError("the backend cuda runs one launch at a time; close the other one first")
        if self._scheduler is not None:
            if self._scheduler.in_flight:
                raise RequestError("what is measured runs alone; close the launches in flight first")
            self._scheduler.settle()  # under the lock: with nothing in flight its thread takes that no more

    def _take_back_ended(self) -> None:
        if self._current is None or self._current.ended:
            self._take_back()

    def _take_back(self) -> None:
        """What the launch before has left of its sequence may serve the next one of the same owner."""
        if self._lent is not None:
            lease, job = self._lent
            self._lent = None
            self._caches.take_back(lease, job, self._current.sequence() if self._current else ())

    def _start_plan(self, launch_plan: LaunchPlan) -> CudaLaunch | MultiGpuLaunch:
        if len(self.device_contexts) > 1:
            self._current = MultiGpuLaunch(self.device_contexts, launch_plan)
            return self._current
        if isinstance(self._current, CudaLaunch) and self._current.needs_recovery:
            self.device_context.empty_mailboxes()
        self._current = CudaLaunch(self.device_context, launch_plan)
        try:
            self._current.start()
        except BaseException:  # or it would count as running for ever
            self._current.close()
            raise
        return self._current

    def measure_bandwidth(self) -> tuple[float, ...]:
        """GB/s (10^9 bytes) that a plain kernel reads from each GPU's memory: best of ten over 4 GiB.

        Virtual GPUs have an equal part each of what one has.
        """
        if len({device.ordinal for device in self._devices}) == 1:
            count = len(self._devices)
            return (self._read_gbs(self.device) / count,) * count
        return tuple(self._read_gbs(device) for device in self._devices)

    def _read_gbs(self, device: Device) -> float:
        device.activate()
        if device.ordinal not in self._readers:
            image = compile_kernel("pack.cu", "").image
            self._readers[device.ordinal] = device.module(image, {"read_all": 0})["read_all"]
        kernel = self._readers[device.ordinal]
        with ExitStack() as stack:
            buffer = stack.enter_context(device.scratch(_READ_BYTES))
            sink = stack.enter_context(device.scratch(16))
            device.fill(buffer, _READ_BYTES)
            arguments = (ctypes.c_uint64(buffer), ctypes.c_uint64(_READ_BYTES // 16), ctypes.c_uint64(sink))
            begin, end = stack.enter_context(device.event()), stack.enter_context(device.event())
            best = 0.0
            for _ in range(10):
                device.call("cuEventRecord", begin, 0)
                device.launch(kernel, (self.layout.plan.cores * 8, 1), 256, 0, arguments)
                device.call("cuEventRecord", end, 0)
                device.call("cuEventSynchronize", end)
                best = max(best, _READ_BYTES / device.call("cuEventElapsedTime", begin, end) / 1e6)
        return best

    def close(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        with self._lock:
            if self._current is not None:
                self._current.close()
                self._current = None
            self._close_devices()

    def _close_devices(self) -> None:
        for device in self._devices:
            device.close()


def kernel_headers(
    model: Loaded,
    devices: int,
    sms: int,
    options: Mapping[str, Any],
    *,
    profile: bool = True,
    free: int | None = None,
) -> tuple[str, ...]:
    """What specialises MONOKERNEL for a model on GPUs of `sms` SMs: without and with filters.

    Then, with `profile`, the same with the profile. `free` is the bytes that a GPU has for models and kept
    sequences; without it there is room for all that is wished for. Needs no GPU. Raises as opening the
    backend does.
    """
    chosen = _parse_options(options)
    layout = _layout(model, devices, sms, chosen)
    if free is not None:
        of_each = free // devices if chosen.virtual else free
        layout = fit_copy(layout, (of_each - chosen.cache_bytes // devices,))
    return tuple(
        _header(layout, profiled, filters)
        for profiled in ((False, True) if profile else (False,))
        for filters in (False, True)
    )


@dataclass(frozen=True, slots=True)
class _Options:
    tuning: Tuning
    context: int | None
    virtual: bool
    cache_bytes: int
    cache_is_given: bool = False
    rows: int = 1


def _parse_options(options: Mapping[str, Any]) -> _Options:
    tunable = {f.name for f in fields(Tuning)} - {"sync_barrier"}
    known = tunable | {"context", "sync", "virtual", "rows", PREFIX_CACHE}
    unknown = sorted(set(options) - known)
    if unknown:
        raise BackendUnavailable(
            f"the backend cuda has no option {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
    sync = options.get("sync", MAILBOX)
    if sync not in SYNCS:
        raise BackendUnavailable(f"sync is {sync!r}; allowed are {', '.join(SYNCS)}")
    tuned = {name: value for name, value in options.items() if name in tunable}
    tuning = Tuning(**tuned, sync_barrier=sync == BARRIER)
    context = options.get("context")
    if context is not None and (not isinstance(context, int) or context < 1):
        raise BackendUnavailable(f"context is {context!r}; it must be a number of tokens, at least 1")
    rows = options.get("rows", 1)
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise BackendUnavailable(f"rows is {rows!r}; it must be a whole number from 1 to {MOST_ROWS}")
    return _Options(
        tuning,
        context,
        bool(options.get("virtual", False)),
        budget_of(options, DEFAULT_CACHE_MIB),
        PREFIX_CACHE in options,
        rows,
    )


def _layout(model: Loaded, devices: int, sms: int, chosen: _Options) -> Layout:
    sharding = shard(model.config, devices)
    kept = choose_storages(model.weights, sharding)
    made = plan(sharding.part, sms // devices if chosen.virtual else sms, kept.storages)
    layout = make_layout(made, kept.half, chosen.tuning, chosen.context, sharding)
    validate(made, layout.slot_units)
    return layout


def _header(layout: Layout, profile: bool, filters: bool) -> str:
    tuned = replace(layout, tuning=replace(layout.tuning, profile=profile))
    return header(tuned, filters=filters)


def _topology(devices: Sequence[Device], sharding: Sharding) -> Topology:
    links = sorted({a.link(b) for a in devices for b in devices if a is not b})
    return Topology(
        devices=tuple(DeviceInfo(d.name, datasheet_gbs(d.name)) for d in devices),
        parallelism=sharding.parallelism,
        lanes=sharding.whole.lanes.count,
        link=", ".join(links),
    )


def require_hopper(device: Device) -> None:
    """Raises BackendUnavailable for a GPU of another generation."""
    major, minor = device.compute_capability
    if major != 9:
        raise BackendUnavailable(
            f"GPU {device.ordinal} is a {device.name} (compute capability {major}.{minor});"
            " the kernels need 9.0: H100, H200"
        )
