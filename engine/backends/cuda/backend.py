"""The cuda backend: a model on one or several Hopper GPUs, one launch on each a request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from engine.backends.base import (
    BARRIER,
    MAILBOX,
    DeviceInfo,
    Job,
    Loaded,
    OnStep,
    Topology,
    check_job,
    check_sequence,
    ignore_step,
)
from engine.backends.cuda.cache_content import read_cache
from engine.backends.cuda.constants import Layout
from engine.backends.cuda.driver import Device, reachable_devices
from engine.backends.cuda.flight import blocks_a_split
from engine.backends.cuda.kept_caches import KeptCaches, Lease
from engine.backends.cuda.launch import CudaLaunch, DeviceContext, LaunchPlan, plan_launch
from engine.backends.cuda.memory import Memory, load_model
from engine.backends.cuda.monokernel import Kernels, layout_for
from engine.backends.cuda.multi_gpu import MultiGpuLaunch
from engine.backends.cuda.options import Options, parse_options
from engine.backends.cuda.profile import LaunchProfile
from engine.backends.cuda.read_bandwidth import ReadBandwidth
from engine.backends.cuda.reading import Ways
from engine.backends.cuda.room import fit_copy, require_room
from engine.backends.cuda.row_launches import RowLaunches
from engine.backends.cuda.rows import Row, RowScheduler
from engine.backends.cuda.seats import kernels_for
from engine.backends.cuda.sharding import Sharding
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.support import NAME, require_hopper, require_support
from engine.backends.cuda.together import several_layout
from engine.backends.prefix_cache import KeptSequence, PrefixCacheUse
from engine.backends.running import drain
from engine.errors import NoRoom, RequestError
from engine.kv_cache import OPTION as CACHE
from engine.kv_cache import CacheFormat, KeysAndValues
from engine.measuring.bandwidth import datasheet_gbs
from engine.models.storage import Storage
from engine.progress import OnProgress, Progress, ignore_progress

_SCORE_TOKENS = 256
"""Tokens scored in one launch: their logits stay on the device until it ends."""


class CudaBackend:
    """Implements engine.backends.base.Backend.

    Options: `sync`, "mailbox" or "barrier"; Tuning's other fields; `context`, the cache's size;
    `prefix_cache_mib`, memory for the keys and values of recent sequences; `virtual`, which gives all
    `devices` a part of the first GPU's SMs each, to try how a model lies on several GPUs where there is one;
    `cache`, fp16 or fp8, how keys and values are kept; `rows`, how many requests it takes at once, which is
    1 all the same where `rows_for` says so; `profile`, which has all launches say where their time goes.
    """

    name = NAME
    _scheduler: RowScheduler | None = None
    """With several rows: it runs all but what is measured."""
    _row_launches: RowLaunches | None = None

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
        chosen = parse_options(options)
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
        self._is_scoring = False
        self._lock = threading.Lock()

    def _open(self, model: Loaded, chosen: Options) -> None:
        devices = len(self._devices)
        for device in self._devices:
            require_hopper(device)
            for other in self._devices:
                device.reach(other)
        sms = min(device.attribute("MULTIPROCESSOR_COUNT") for device in self._devices)
        wanted = layout_for(model, devices, sms, chosen)
        self.layout = fit_copy(wanted, self._free_for_weights(chosen.cache_bytes), self._progress)
        self.rows = self.layout.rows
        self._chosen = choose_storages(model.weights, self.layout.sharding)
        self.config = replace(self.config, context=min(self.config.context, self.layout.capacity))
        self._kernels = Kernels(self._devices, self.layout, self._progress)
        self._read_bandwidth = ReadBandwidth(self._devices, self.layout.plan.cores)
        memories = [self._load(model, rank) for rank in range(devices)]
        self.device_contexts = [
            DeviceContext(
                device,
                self.layout,
                memory,
                partial(self._kernels.get, rank),
                blocks_a_split=blocks_a_split(self.layout),
                rank=rank,
                team=memories,
                rows=self.rows,
            )
            for rank, (device, memory) in enumerate(zip(self._devices, memories, strict=True))
        ]
        for rank in range(devices):
            self._kernels.get(rank, chosen.tuning.profile, False)
        of_rows = self.rows if self.rows > 1 and not chosen.cache_is_given else 0
        in_flight = of_rows * devices * memories[0].kv_bytes
        self._caches = KeptCaches(self._devices, memories[0].kv_bytes, chosen.cache_bytes + in_flight)
        self.topology = _topology(self._devices, self.layout.sharding)
        self.facts: dict[str, Any] = {
            "sync": BARRIER if chosen.tuning.sync_barrier else MAILBOX,
            CACHE: (CacheFormat.FP8 if chosen.tuning.fp8_cache else CacheFormat.FP16).value,
            "tuning": tuning_facts(self.layout),
        } | ({"rows": self.rows} if self.rows > 1 else {})

    def _open_rows(self, chosen: Options) -> RowScheduler:
        """Compiles the kernels of several requests, side by side, and makes room for the rows."""
        layouts = {size: several_layout(self.layout, chosen.context, size) for size in kernels_for(self.rows)}
        kernels = self._kernels.of_several(layouts, profile=chosen.tuning.profile)
        launches = self._row_launches = RowLaunches(self.device_contexts, layouts, kernels)

        def lend(job: Job) -> Lease:
            with self._lock:
                self._take_back_ended()
                return self._caches.lend_row(job)

        def take_back(lease: Lease, job: Job, tokens: Sequence[int]) -> None:
            with self._lock:
                self._caches.take_back_row(lease, job, tokens)

        return RowScheduler(
            self.config.context,
            Ways.of(self.layout),
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

    @property
    def rows_profile(self) -> LaunchProfile | None:
        """Of the last launch of several requests, with the option `profile`; waits for its end."""
        if self._scheduler is not None:
            self._scheduler.settle()
        return None if self._row_launches is None else self._row_launches.profile

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        with self._lock:
            self._take_back_ended()
            return self._caches.use

    def storage(self, name: str) -> Storage:
        return self._chosen.named(name)

    def settle(self) -> None:
        with self._lock:
            self._take_back_ended()

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
        return self._launch_alone(job)[0]

    def _launch_alone(self, job: Job) -> tuple[CudaLaunch | MultiGpuLaunch, Lease | None]:
        """And what it uses of the kept caches; None is the buffers that came with the model."""
        context = self.config.context
        with self._lock:
            self._require_idle()
            self._take_back()
            lease = self._caches.lend(job)
            if lease is None:
                return self._start_plan(plan_launch(job, context)), None
            try:
                launch = self._start_plan(plan_launch(job, context, lease.first, lease.buffers))
            except BaseException:
                self._caches.take_back(lease, job, ())
                raise
            self._lent = (lease, job)
            return launch, lease

    def _join(self, scheduler: RowScheduler, job: Job) -> Row:
        with self._lock:
            self._require_unscored()
            if self._current is not None and not self._current.ended:
                raise NoRoom("what is measured runs alone; close the launches in flight first")
            if scheduler.in_flight == self.rows:
                raise RequestError(
                    f"the backend cuda runs {self.rows} launches at a time; close the other one first"
                )
            self._caches.require_room()  # before anybody's launch ends for it
            row = scheduler.join(job)
        row.await_admission()
        return row

    def logits(
        self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step
    ) -> NDArray[np.float32]:
        """As engine.backends.base.Backend says: by the decode path, and alone on the device."""
        check_sequence(self.config, tokens, scored_from)
        out = np.empty((len(tokens) - scored_from, self.config.vocab), np.float32)
        with self._scoring():
            for row in range(0, len(out), _SCORE_TOKENS):
                on_step()
                start = scored_from + row
                first = start if row else 0  # later launches go on from what the first one has left
                plan = LaunchPlan(
                    tokens[: start + _SCORE_TOKENS], 1, first=first, prefill_end=start, keep_logits=True
                )
                out[row : row + _SCORE_TOKENS] = self._score(plan)
        return out

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        """Nobody's launch begins meanwhile: it might write over what the next launch here goes on from."""
        with self._lock:
            self._require_idle()
            self._is_scoring = True
        try:
            yield
        finally:
            self._is_scoring = False

    def logits_and_cache(
        self, tokens: Sequence[int], scored_from: int = 0
    ) -> tuple[NDArray[np.float32], KeysAndValues]:
        logits = self.logits(tokens, scored_from)
        return logits, self._content(len(tokens))

    def tokens_and_cache(self, job: Job) -> tuple[list[int], KeysAndValues]:
        """It goes on from what its owner has kept, as `launch` does."""
        check_job(self.config, job)
        launch, lease = self._launch_alone(job)
        tokens = [token.id for token in drain(launch)]
        return tokens, self._content(len(job.tokens) + len(tokens) - 1, lease)

    def _content(self, positions: int, lease: Lease | None = None) -> KeysAndValues:
        """What is in the lease's buffers, or in those that came with the model, of all GPUs' heads."""
        parts = []
        for rank in range(0, len(self.device_contexts), self.layout.sharding.kv_copies):
            context = self.device_contexts[rank]
            context.device.activate()
            kept = context.memory.kv if lease is None else lease.buffers[rank]
            parts.append(read_cache(context.device, kept, self.layout, positions))
        return KeysAndValues(*(np.concatenate(both, axis=1) for both in zip(*parts, strict=True)))

    def _score(self, launch_plan: LaunchPlan) -> NDArray[np.float32]:
        launch = self._start(launch_plan)
        try:
            launch.wait()
            scored: NDArray[np.float32] = launch.logits()
            return scored
        finally:
            launch.close()

    def _start(self, launch_plan: LaunchPlan) -> CudaLaunch | MultiGpuLaunch:
        """One of a scoring, which has the device to itself."""
        with self._lock:
            self._take_back()
            return self._start_plan(launch_plan)

    def _require_idle(self) -> None:
        self._require_unscored()
        if self._current is not None and not self._current.ended:
            raise NoRoom("the backend cuda runs one launch at a time; close the other one first")
        if self._scheduler is not None:
            if self._scheduler.in_flight:
                raise NoRoom("what is measured or scored runs alone; close the launches in flight first")
            self._scheduler.settle()  # under the lock: with nothing in flight its thread takes that no more

    def _require_unscored(self) -> None:
        if self._is_scoring:
            raise NoRoom("another answer's log-probabilities are computed, which takes the GPU alone")

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
        """GB/s (10^9 bytes) that a plain kernel reads from each GPU's memory (ReadBandwidth)."""
        return self._read_bandwidth.measure()

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


def tuning_facts(layout: Layout) -> dict[str, Any]:
    """What an open backend says of it, without the cache's format, which the facts name by itself."""
    tuning = asdict(layout.tuning) | {"slot_units": layout.slot_units}
    del tuning["fp8_cache"]
    return tuning


def _topology(devices: Sequence[Device], sharding: Sharding) -> Topology:
    links = sorted({a.link(b) for a in devices for b in devices if a is not b})
    return Topology(
        devices=tuple(DeviceInfo(d.name, datasheet_gbs(d.name)) for d in devices),
        parallelism=sharding.parallelism,
        lanes=sharding.whole.lanes.count,
        link=", ".join(links),
    )
