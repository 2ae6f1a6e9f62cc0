"""One request on one GPU: its parameters, the token ring that the host reads, and how it ended.

Of several GPUs that run a model together each has a launch of its own (engine.backends.cuda.multi_gpu).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Job, Outcome, Token, TraceSpan
from engine.backends.cuda.constants import Layout
from engine.backends.cuda.contract import (
    PEER_POINTERS,
    POINTERS,
    THREADS,
    Control,
    Finish,
    Params,
    Wait,
)
from engine.backends.cuda.driver import Device
from engine.backends.cuda.host_side import HostSide
from engine.backends.cuda.memory import Memory
from engine.backends.cuda.params import sampling_of
from engine.backends.cuda.polling import PolledLaunch
from engine.backends.cuda.profile import ProfileBuffer
from engine.backends.cuda.resources import LaunchResources, ResourcePool
from engine.backends.cuda.tape import Matrix
from engine.backends.cuda.watch import Watch
from engine.errors import BackendFailure, DeviceLost
from engine.sampling import SamplingParams
from engine.timings import FinishReason, PhaseTime

_FINISH: dict[int, FinishReason] = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.CANCELLED: "cancelled",
}
_WAITS = {
    Wait.EMPTY: "a free ring slot",
    Wait.VECTOR: "the input vector",
    Wait.QUERY: "queries, a key or a value",
    Wait.PARTIAL: "a part of a head",
    Wait.LANES: "other lanes' output",
    Wait.CANDIDATE: "a token candidate",
    Wait.BARRIER: "the barrier of all SMs",
    Wait.LANDED: "a copy to land",
    Wait.RANKS: "the barrier of all GPUs",
    Wait.SCORES: "the router's scores",
    Wait.ROUTE: "the router's answer",
}
_PHASES = (*(matrix.name.lower() for matrix in Matrix), "attention or between phases")
_MAIL_L2_BYTES = 12 << 20
"""Of the L2 cache, set aside for mailboxes; with 8 and with 24 MiB Qwen2.5-Coder-1.5B was slower."""


@dataclass
class DeviceContext:
    """What every launch of a model on one GPU shares.

    `serial` numbers decode passes over all launches, from 1; `team` has the memory of all GPUs that run the
    model together, by rank.
    """

    device: Device
    layout: Layout
    memory: Memory
    kernel: Callable[[bool, bool], Any]
    """The monokernel, with or without the profile, and the filters, compiled in."""
    blocks_a_split: int
    rank: int
    team: Sequence[Memory]
    serial: int = 1
    spin_budget_s: float = 1.5
    rows: int = 1
    """Requests in flight at once, at most: with several, a prompt's last token is decoded in every launch."""

    def __post_init__(self) -> None:
        self.pool = ResourcePool(self.device)
        self.device.set_aside_l2(_MAIL_L2_BYTES)

    @property
    def all_resident(self) -> bool:
        """Whether this launch has the GPU to itself, and the driver is to check that all of it fits."""
        return self.layout.plan.cores == self.device.attribute("MULTIPROCESSOR_COUNT")

    @property
    def vocab(self) -> int:
        """Of the whole model: every GPU's launch can score all of it."""
        return self.layout.sharding.whole.vocab

    @cached_property
    def pointers(self) -> Params:
        """What the kernel finds in the same place in every launch."""
        found = Params(rank=self.rank)
        for rank, other in enumerate(self.team):
            for name in PEER_POINTERS:
                setattr(found.peers[rank], name, getattr(other, name))
        for name in POINTERS:
            if hasattr(self.memory, name):
                setattr(found, name, getattr(self.memory, name))
        return found

    def empty_mailboxes(self) -> None:
        """After an abort they hold words of an unfinished pass: start over. No GPU may be running."""
        self.device.activate()
        self.device.fill(self.memory.mail, self.memory.mail_bytes)
        self.device.fill(self.memory.candidates, self.layout.candidates_bytes)
        self.device.synchronise()
        self.serial = 1


@dataclass(frozen=True)
class LaunchPlan:
    """What one launch does. With `keep_logits` the ids from `prefill_end` on are scored."""

    ids: Sequence[int]
    max_new: int
    first: int = 0
    prefill_end: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampled: int = 0
    """How many of the last `ids` were generated."""
    stop_ids: frozenset[int] = frozenset()
    keep_logits: bool = False
    profile: bool = False
    trace: tuple[int, int] = (0, 0)
    caches: tuple[int, ...] = ()
    """Where keys and values lie on each GPU, by rank; empty for the buffer that came with the model."""
    tiles_from: int | None = None
    """Tokens left of the prompt from which on they go by tiles; None: what is fastest for the model."""
    layers: tuple[int, int] | None = None
    """Of a launch of several, by tiles: from which to which layer the prompt goes; None: through all."""

    @property
    def steps(self) -> int:
        """Ids that go through decode, and are scored with `keep_logits`."""
        return len(self.ids) - self.prefill_end


def plan_launch(job: Job, context: int, first: int = 0, caches: tuple[int, ...] = ()) -> LaunchPlan:
    """All but the last id of the prompt through prefill; the last one is the first decode step.

    Keys and values of the ids before `first` are in `caches` already.
    """
    return LaunchPlan(
        ids=job.tokens,
        max_new=min(job.max_tokens, context - len(job.tokens)),
        first=first,
        caches=caches,
        prefill_end=len(job.tokens) - 1,
        sampling=job.sampling,
        sampled=job.sampled,
        stop_ids=job.stop_ids,
        profile=job.profile or job.trace is not None,
        trace=(job.trace.first, job.trace.last) if job.trace else (0, 0),
    )


def params_of(context: DeviceContext, plan: LaunchPlan) -> Params:
    """What the kernel reads of a plan, and where the model lies; without what a launch has for itself."""
    params = Params.from_buffer_copy(context.pointers)
    params.spin_budget_ns = int(context.spin_budget_s * 1e9)
    params.sampling = sampling_of(plan.sampling, context.vocab)
    params.first = plan.first
    params.tiles_from = context.layout.tiles_from if plan.tiles_from is None else plan.tiles_from
    params.prefill_end = plan.prefill_end
    params.last_along = int(context.rows == 1)
    params.ids_count = len(plan.ids)
    params.max_new = plan.max_new
    params.stop_count = len(plan.stop_ids)
    params.bias_count = len(plan.sampling.logit_bias)
    params.sampled_from = len(plan.ids) - plan.sampled
    params.keep_logits = int(plan.keep_logits)
    params.trace_first, params.trace_last = plan.trace
    params.blocks_a_split = context.blocks_a_split
    if plan.caches:
        params.kv = plan.caches[context.rank]
    return params


def watchdog_report(context: DeviceContext, address: int) -> tuple[bool, str]:
    """Whether a wait on this GPU took too long, and which one it was, in a sentence.

    `address` is that of the launch's Control.
    """
    found = context.device.download(address, (ctypes.sizeof(Control),), np.uint8)
    control = Control.from_buffer_copy(found.tobytes())
    what = _WAITS.get(control.wait, "nothing")
    seconds, phase = context.spin_budget_s, _PHASES[min(control.phase, len(Matrix))]
    return control.wait != 0, (
        f"the monokernel stood still: GPU {context.rank}, SM {control.sm}, warp {control.warp}"
        f" waited over {seconds:g} s for {what} in {phase} of layer {control.layer} at position"
        f" {control.position}; the request has ended, others may run"
    )


class CudaLaunch(PolledLaunch):
    """One request on one GPU. Implements engine.backends.base.Launch.

    Made ready by the constructor; `start` makes it run. In between no GPU of a team is busy, so that memory
    which the others write is ready on all of them before any begins.
    """

    def __init__(self, context: DeviceContext, plan: LaunchPlan) -> None:
        super().__init__(plan.max_new)
        self._context, self._plan = context, plan
        self._lock = threading.Lock()
        self._resources = LaunchResources(context.pool)
        self._failure: str | None = None
        self.starved_us: Mapping[str, float] = {}
        self.needs_recovery = False
        """True once the watchdog has ended it: `DeviceContext.empty_mailboxes` must come before another."""
        self.stuck = False
        """True if it was its own wait that took too long, not another GPU's."""
        self._aborted = False
        try:
            self._prepare()
        except BaseException:
            with suppress(BackendFailure):  # the failure that led here says more
                self._resources.release()
            raise

    def _prepare(self) -> None:
        """What the driver takes time for comes first: the rest is done here while the GPU does that."""
        context, plan = self._context, self._plan
        device, memory = context.device, context.memory
        device.activate()
        self._stream, self._side = self._resources.stream(), self._resources.stream()
        device.fill(memory.cleared, memory.cleared_bytes, 0, self._stream)
        device.keep_in_l2(self._stream, memory.mail, memory.mail_bytes)
        self._params = params_of(context, plan)
        self._host = HostSide(device, self._resources, self._stream, [self._params], [plan])
        [self._view] = self._host.views
        silent = max(1, len(plan.ids) - plan.prefill_end)  # passes over known ids tell the host nothing
        self._watch = Watch(device, self._stream, context.spin_budget_s, silent)
        self.logits_address = 0
        if plan.keep_logits and context.rank == 0:
            self.logits_address = self._resources.memory(plan.steps * context.vocab * 4)
        profile = plan.profile or context.layout.tuning.profile
        self._profile = ProfileBuffer(context.layout, plan.trace) if profile else None
        self._profile_address = 0
        if self._profile:
            self._profile_address = self._resources.memory(self._profile.size)
            device.fill(self._profile_address, self._profile.size, 0, self._stream)
        self._params.logits, self._params.profile = self.logits_address, self._profile_address
        self._params.serial = context.serial & 0xFFFFFFFF
        sampling = self._params.sampling
        self._kernel = context.kernel(profile, bool(sampling.filtered or sampling.adjusts))
        device.synchronise()

    def start(self, logits: int | None = None) -> None:
        """`logits` is where the first GPU of a team collects them."""
        context = self._context
        context.device.activate()
        if logits is not None:
            self._params.logits = logits
        self._watch.begin()
        context.device.launch(
            self._kernel,
            (context.layout.plan.cores, 1),
            THREADS,
            context.layout.shared_bytes,
            (self._params,),
            stream=self._stream,
            all_resident=context.all_resident,
        )

    @property
    def prefilled(self) -> int:
        return self._view.prefilled

    @property
    def prefill_ns(self) -> int:
        """Nanoseconds of the launch when `prefilled` tokens were there."""
        return self._view.prefill_ns

    @property
    def failure(self) -> str | None:
        """What broke down, in a sentence."""
        return self._failure

    @property
    def usable(self) -> bool:
        """False once the GPU has failed and the driver refuses everything on it."""
        return self._failure is None or self.needs_recovery

    @property
    def breakdown(self) -> BackendFailure | None:
        if self._failure is None:
            return None
        return (BackendFailure if self.usable else DeviceLost)(self._failure)

    def stop(self) -> None:
        with self._lock:
            if not self.ended:
                self._raise_flag(self._context.memory.stop_flag)

    def abort(self) -> None:
        """Makes every wait on this GPU give up: another one, whose words it would wait for, is lost."""
        with self._lock:
            if self.ended:
                return
            if not self._aborted:
                self._aborted = True
                self._watch.begin()
            self._raise_flag(self._context.memory.control + Control.aborted.offset)

    def _raise_flag(self, address: int) -> None:
        """A copy engine does this; a kernel would find no room beside the one that runs."""
        device = self._context.device
        device.activate()
        device.call("cuMemcpyHtoDAsync", address, self._host.flags.ctypes.data, 4, self._side)

    def close(self) -> None:
        """Asks a launch that still runs to stop, waits for it, and frees what it held."""
        self.stop()
        self._wait_for_end()
        with self._lock:
            if not self.usable:
                return
            self._view.detach()
            self._resources.release()

    def logits(self) -> NDArray[np.float32]:
        """Of every id from `prefill_end` on, [steps, vocab], once a launch with `keep_logits` has ended."""
        shape = (self._plan.steps, self._context.vocab)
        return self._context.device.download(self.logits_address, shape, np.float32)

    def sequence(self) -> list[int]:
        """The ids whose keys and values an ended launch has left; none if it broke down.

        The last new token was never processed.
        """
        if self._outcome is None:
            return []
        tokens = self._view.tokens()
        if not tokens:  # stopped while the prompt was read
            return list(self._plan.ids[: self.prefilled])
        return [*self._plan.ids, *(token.id for token in tokens[:-1])]

    def take(self) -> list[Token]:
        return self._view.take()

    def _look(self) -> None:
        with self._lock:
            if self.ended:
                return
            self._context.device.activate()
            if self._watch.has_ended(self._shown()):
                self._finish()
            elif self._watch.loss:
                self._failure = self._watch.loss

    def _shown(self) -> object:
        """Only the first GPU of a team shows what it does; others must end once they were told to give up."""
        is_patient = self._context.rank != 0 and not self._aborted
        return object() if is_patient else self._view.shown

    def _finish(self) -> None:
        """Reads what the kernel left: an outcome, or why the watchdog ended it."""
        status = self._view.status
        reason = _FINISH.get(status.finish)
        self._context.serial += status.passes
        if reason is None:
            self._failure = self._report()
            self.needs_recovery = True
            return
        phases: Mapping[str, PhaseTime] = {}
        spans: tuple[TraceSpan, ...] = ()
        if self._profile:
            shape = (self._profile.size // 8,)
            words = self._context.device.download(self._profile_address, shape, np.uint64)
            self.starved_us = self._profile.starved_us(words)
            phases, spans = self._profile.phases_us(words), self._profile.spans(words)
        cached = self._plan.first
        prefill_ns = int(status.prefill_ns)
        self._outcome = Outcome(reason, self.prefilled - cached, prefill_ns, phases, spans, cached)

    def _report(self) -> str:
        self.stuck, report = watchdog_report(self._context, self._context.memory.control)
        return report
