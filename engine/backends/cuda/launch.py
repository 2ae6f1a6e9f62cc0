"""One request on one GPU: its parameters, the token ring that the host reads, and how it ended.

Of several GPUs that run a model together each has a launch of its own (engine.backends.cuda.team).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import FinishReason, Job, Outcome, PhaseTime, SamplingParams, Token, TraceSpan
from engine.backends.cuda.constants import Layout
from engine.backends.cuda.driver import Device
from engine.backends.cuda.memory import Memory
from engine.backends.cuda.profile import ProfileBuffer
from engine.backends.cuda.sharding import MAX_RANKS
from engine.errors import BackendFailure, DeviceLost

_FINISH: dict[int, FinishReason] = {1: "stop", 2: "length", 3: "cancelled"}
_ABORTED = 4
THREADS = 384
"""core.cuh's THREADS."""
_WAITS = {
    1: "weights in its ring",
    2: "a free ring slot",
    3: "the input vector",
    4: "queries, a key or a value",
    5: "a part of a head",
    6: "other lanes' output",
    7: "a token candidate",
    8: "the chosen token",
    9: "the barrier of all SMs",
    10: "a copy to land",
    11: "the barrier of all GPUs",
}
_PHASES = ("qkv", "attn_out", "gate_up", "down", "head", "between phases")
_ID_BITS = 20
CONTROL_BYTES = 64
"""params.cuh's Control: eight words and one for each GPU."""
_ABORTED_AT = 4
"""Bytes to `aborted` within it."""
_STOP_WORD = 12
"""A word of the status block, always 1, that `stop` copies into the device's flag."""
_START_GRACE_S = 10.0
"""For the driver to bring a process's first kernel onto the GPU, and for a host that was held up itself."""
_BUDGETS_A_PASS = 4
"""How many spin budgets a pass, of decode or of a chunk of the prompt, may take. One that is well takes a
fraction of one, and the watchdog ends a launch in which any single wait takes one; what outlasts four runs no
watchdog at all."""
_SPIN_SECONDS = 50e-6
"""How long `poll` sleeps between looks at the ring: a sixth of the fastest token."""


class _Sampling(ctypes.Structure):
    _fields_ = (
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("seed_low", ctypes.c_uint32),
        ("seed_high", ctypes.c_uint32),
        ("filtered", ctypes.c_uint32),
    )


_POINTERS = (
    *("tape", "tape_offset", "shares", "embed", "norms", "rotation", "kv", "mail", "candidates", "choice"),
    *("stream", "outputs", "queries", "operand_hidden", "operand_heads", "operand_ffn", "logits", "ids"),
    *("stop_ids", "control", "stop_flag", "ring", "status", "profile"),
)
_INTEGERS = (
    *("first", "prefill_end", "ids_count", "max_new", "stop_count", "keep_logits"),
    *("trace_first", "trace_last", "slots_in_flight", "blocks_a_split"),
)


_PEER_POINTERS = ("mail", "candidates", "choice", "outputs", "control")


class PeerAddresses(ctypes.Structure):
    """params.cuh's Peer."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _PEER_POINTERS)


class Params(ctypes.Structure):
    """params.cuh's Params."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in _POINTERS),
        ("peers", PeerAddresses * MAX_RANKS),
        ("spin_budget_ns", ctypes.c_uint64),
        ("sampling", _Sampling),
        *((name, ctypes.c_int32) for name in _INTEGERS),
        ("rank", ctypes.c_int32),
        ("serial", ctypes.c_uint32),
    )


@dataclass
class Machine:
    """What every launch of a model on one GPU shares.

    `serial` numbers decode passes over all launches, from 1; `team` has the memory of all GPUs that run the
    model together, by rank.
    """

    device: Device
    layout: Layout
    memory: Memory
    kernel: Callable[[bool], Any]
    """The monokernel, with or without the profile compiled in."""
    slots_in_flight: int
    blocks_a_split: int
    rank: int
    team: Sequence[Memory]
    serial: int = 1
    spin_budget_s: float = 1.5

    @property
    def all_resident(self) -> bool:
        """Whether this launch has the GPU to itself, and the driver is to check that all of it fits."""
        return self.layout.plan.cores == self.device.attribute("MULTIPROCESSOR_COUNT")

    def empty_mailboxes(self) -> None:
        """After an abort they hold words of an unfinished pass: start over. No GPU may be running."""
        self.device.activate()
        self.device.fill(self.memory.mail, self.memory.mail_bytes)
        self.device.fill(self.memory.candidates, self.layout.candidates_bytes)
        self.device.fill(self.memory.choice, 8)
        self.device.synchronise()
        self.serial = 1


@dataclass(frozen=True)
class Work:
    """What one launch does. With `keep_logits` the first id to process and all that follow are scored."""

    ids: Sequence[int]
    max_new: int
    first: int = 0
    prefill_end: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    keep_logits: bool = False
    profile: bool = False
    trace: tuple[int, int] = (0, 0)


def work_of(job: Job, context: int) -> Work:
    """All but the last id of the prompt through prefill; the last one is the first decode step."""
    return Work(
        ids=job.tokens,
        max_new=min(job.max_tokens, context - len(job.tokens)),
        prefill_end=len(job.tokens) - 1,
        sampling=job.sampling,
        stop_ids=job.stop_ids,
        profile=job.profile or job.trace is not None,
        trace=(job.trace.first, job.trace.last) if job.trace else (0, 0),
    )


class CudaLaunch:
    """One request on one GPU. Implements engine.backends.base.Launch.

    Made ready by the constructor; `start` makes it run. In between no GPU of a team is busy, so that memory
    which the others write is ready on all of them before any begins.
    """

    def __init__(self, machine: Machine, work: Work) -> None:
        self._machine, self._work = machine, work
        self._lock = threading.Lock()
        self._owned: list[int] = []
        self._streams: list[Any] = []
        self._host: NDArray[np.uint8] | None = None
        self._read = 0
        self._outcome: Outcome | None = None
        self._failure: str | None = None
        self.starved_us: Mapping[str, float] = {}
        self.needs_recovery = False
        """True once the watchdog has ended it; `Machine.empty_mailboxes` must come before the next launch."""
        self.stuck = False
        """True if it was its own wait that took too long, not another GPU's."""
        self._moved, self._moved_at = (0, 0), 0.0
        self._aborted_at: float | None = None
        silent = max(1, len(work.ids) - work.prefill_end)  # passes over known ids tell the host nothing
        self._patience_s = _START_GRACE_S + _BUDGETS_A_PASS * machine.spin_budget_s * silent
        try:
            self._prepare()
        except BaseException:
            with suppress(BackendFailure):  # the failure that led here says more
                self._release()
            raise

    def _prepare(self) -> None:
        machine, work = self._machine, self._work
        device, memory = machine.device, machine.memory
        device.activate()
        vocab = machine.layout.sharding.whole.vocab
        self._host, ring_address = device.mapped(8 * max(1, work.max_new) + 64)
        self._ring: NDArray[np.uint64] = self._host[64:].view(np.uint64)
        self._status: NDArray[np.uint32] = self._host[:64].view(np.uint32)
        self._status[_STOP_WORD] = 1
        for _ in range(2):
            self._streams.append(device.stream())
        self._stream, self._side = self._streams
        device.fill(memory.control, CONTROL_BYTES, 0, self._stream)
        device.fill(memory.stop_flag, 4, 0, self._stream)
        steps = len(work.ids) - work.first
        self.logits_address = memory.scores
        if work.keep_logits and machine.rank == 0:
            self.logits_address = self._own(steps * vocab * 4)
        self._profile = ProfileBuffer(machine.layout, work.trace) if work.profile else None
        profile = self._own(self._profile.size) if self._profile else 0
        if self._profile:
            device.fill(profile, self._profile.size, 0, self._stream)
        self._profile_address = profile
        ids = np.asarray(work.ids, np.int32)
        stops = np.asarray(sorted(work.stop_ids) or [-1], np.int32)
        params = Params(
            ring=ring_address + 64,
            status=ring_address,
            logits=self.logits_address,
            ids=self._put(ids),
            stop_ids=self._put(stops),
            profile=profile,
            spin_budget_ns=int(machine.spin_budget_s * 1e9),
            sampling=_sampling(work.sampling, vocab),
            first=work.first,
            prefill_end=work.prefill_end,
            ids_count=len(ids),
            max_new=work.max_new,
            stop_count=len(work.stop_ids),
            keep_logits=int(work.keep_logits),
            trace_first=work.trace[0],
            trace_last=work.trace[1],
            slots_in_flight=machine.slots_in_flight,
            blocks_a_split=machine.blocks_a_split,
            rank=machine.rank,
            serial=machine.serial & 0xFFFFFFFF,
        )
        for rank, other in enumerate(machine.team):
            for name in _PEER_POINTERS:
                setattr(params.peers[rank], name, getattr(other, name))
        for name in _POINTERS:
            if hasattr(memory, name):
                setattr(params, name, getattr(memory, name))
        self._params = params
        self._kernel = machine.kernel(work.profile or machine.layout.tuning.profile)
        device.synchronise()

    def start(self, logits: int | None = None) -> None:
        """`logits` is where the first GPU of a team collects them."""
        machine = self._machine
        machine.device.activate()
        if logits is not None:
            self._params.logits = logits
        self._moved_at = time.perf_counter()
        machine.device.launch(
            self._kernel,
            (machine.layout.plan.cores, 1),
            THREADS,
            machine.layout.shared_bytes,
            (self._params,),
            stream=self._stream,
            all_resident=machine.all_resident,
        )

    @property
    def prefilled(self) -> int:
        return int(self._status[2])

    @property
    def outcome(self) -> Outcome | None:
        self._look()
        return self._outcome

    @property
    def ended(self) -> bool:
        """True once it has an outcome or has broken down."""
        return self._outcome is not None or self._failure is not None

    @property
    def failure(self) -> str | None:
        """What broke down, in a sentence."""
        return self._failure

    @property
    def usable(self) -> bool:
        """False once the GPU has failed and the driver refuses everything on it."""
        return self._failure is None or self.needs_recovery

    @property
    def breakdown(self) -> BackendFailure:
        """The failure, as what it means for the process."""
        return (BackendFailure if self.usable else DeviceLost)(self._failure)

    def poll(self, timeout: float) -> Sequence[Token]:
        deadline = time.perf_counter() + timeout
        while True:
            tokens = self.take()
            if tokens:
                return tokens
            self._look()
            if self.ended:
                tokens = self.take()
                if not tokens and self._failure is not None:
                    raise self.breakdown
                return tokens
            if time.perf_counter() >= deadline:
                return []
            time.sleep(_SPIN_SECONDS)

    def stop(self) -> None:
        with self._lock:
            if self.ended or not self._side:
                return
            device = self._machine.device
            device.activate()
            # A copy engine does this; a kernel would find no room beside the one that runs.
            source = self._status.ctypes.data + 4 * _STOP_WORD
            device.call("cuMemcpyHtoDAsync", self._machine.memory.stop_flag, source, 4, self._side)

    def abort(self) -> None:
        """Makes every wait on this GPU give up: another one, whose words it would wait for, is lost."""
        with self._lock:
            if self.ended or not self._side:
                return
            if self._aborted_at is None:
                self._aborted_at = time.perf_counter()
            device = self._machine.device
            device.activate()
            source = self._status.ctypes.data + 4 * _STOP_WORD
            aborted = self._machine.memory.control + _ABORTED_AT
            device.call("cuMemcpyHtoDAsync", aborted, source, 4, self._side)

    def close(self) -> None:
        """Asks a launch that still runs to stop, waits for it, and frees what it held."""
        self.stop()
        while not self.ended:
            self._look()
            time.sleep(_SPIN_SECONDS)
        with self._lock:
            if not self.usable:
                return
            self._status, self._ring = self._status.copy(), self._ring.copy()
            self._release()

    def _release(self) -> None:
        """Frees what is held; a second time there is nothing left."""
        device = self._machine.device
        device.activate()
        while self._owned:
            device.free(self._owned.pop())
        while self._streams:
            device.call("cuStreamDestroy", self._streams.pop())
        self._side = None
        if self._host is not None:
            host, self._host = self._host, None
            device.free_mapped(host)

    def logits(self) -> NDArray[np.float32]:
        """Of every id from `first` on, [ids - first, vocab], once a launch with `keep_logits` has ended."""
        shape = (len(self._work.ids) - self._work.first, self._machine.layout.sharding.whole.vocab)
        return self._machine.device.download(self.logits_address, shape, np.float32)

    def wait(self) -> Outcome:
        """Blocks until the end. Raises BackendFailure if the device broke down."""
        while not self.ended:
            self._look()
            time.sleep(_SPIN_SECONDS)
        if self._failure is not None:
            raise self.breakdown
        assert self._outcome is not None  # noqa: S101  ended without failure
        return self._outcome

    def _own(self, size: int) -> int:
        self._owned.append(self._machine.device.allocate(size))
        return self._owned[-1]

    def _put(self, values: NDArray[Any]) -> int:
        pointer = self._own(values.nbytes)
        self._machine.device.upload(pointer, values)
        return pointer

    def take(self) -> list[Token]:
        """Tokens since the last call, without waiting."""
        end = self._read
        while end < len(self._ring) and self._ring[end]:
            end += 1
        words = self._ring[self._read : end].tolist()
        self._read = end
        return [Token(word & (1 << _ID_BITS) - 1, word >> _ID_BITS) for word in words]

    def _look(self) -> None:
        """Notices the end of the kernel."""
        with self._lock:
            if self.ended:
                return
            device = self._machine.device
            device.activate()
            result = device.driver.CUresult
            (status,) = device.driver.cuStreamQuery(self._stream)
            if status == result.CUDA_ERROR_NOT_READY:
                if self._lifeless():
                    device.abandoned = True
                    self._failure = (
                        f"GPU {device.ordinal} was lost while it ran a request: no token, no part of the"
                        f" prompt and no end in {self._patience_s:g} s"
                    )
                return
            if status != result.CUDA_SUCCESS:
                self._failure = f"GPU {device.ordinal} was lost while it ran a request ({status.name})"
                return
            finish = int(self._status[3])
            self._machine.serial += int(self._status[5])
            if finish == _ABORTED or finish not in _FINISH:
                self._failure = self._report()
                self.needs_recovery = True
                return
            reason = _FINISH[finish]
            prefill_ns = int(self._status[:2].view(np.uint64)[0])
            phases: Mapping[str, PhaseTime] = {}
            spans: tuple[TraceSpan, ...] = ()
            if self._profile:
                words = device.download(self._profile_address, (self._profile.size // 8,), np.uint64)
                self.starved_us = self._profile.starved_us(words)
                phases, spans = self._profile.phases_us(words), self._profile.spans(words)
            self._outcome = Outcome(reason, self.prefilled, prefill_ns, phases, spans)

    def _lifeless(self) -> bool:
        """Whether the kernel has shown nothing for longer than a pass can take: it does not run.

        Only the first GPU of a team shows what it does; the others must end once they were told to give up.
        """
        now = time.perf_counter()
        written = self._moved[1]
        while written < len(self._ring) and self._ring[written]:
            written += 1
        if (moved := (self.prefilled, written)) != self._moved:
            self._moved, self._moved_at = moved, now
        since = self._moved_at if self._machine.rank == 0 else self._aborted_at
        return since is not None and now - since > self._patience_s

    def _report(self) -> str:
        control = self._machine.device.download(self._machine.memory.control, (8,), np.uint32)
        _, _, sm, warp, wait, phase, layer, position = control.tolist()
        self.stuck = wait != 0
        what = _WAITS.get(wait, "nothing")
        seconds, phase_name = self._machine.spin_budget_s, _PHASES[min(phase, 5)]
        return (
            f"the monokernel stood still: GPU {self._machine.rank}, SM {sm}, warp {warp} waited over"
            f" {seconds:g} s for {what} in {phase_name} of layer {layer} at position {position};"
            " the request has ended, others may run"
        )


def _sampling(params: SamplingParams, vocab: int) -> _Sampling:
    filtered = params.temperature > 0 and (
        0 < params.top_k < vocab or params.top_p < 1.0 or params.min_p > 0.0
    )
    return _Sampling(
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.top_k,
        params.seed & 0xFFFFFFFF,
        params.seed >> 32,
        int(filtered),
    )
