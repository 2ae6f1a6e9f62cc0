"""Keys and values of recent sequences in the GPUs' memory, and which launch goes on from which.

A cache here is one buffer on each GPU, of the size that every launch needs. Jobs without an owner
(benchmarks, scoring) use the buffer that came with the model, and nothing of theirs is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.backends.base import Job
from engine.backends.cuda.driver import Device
from engine.backends.prefix_cache import KeptSequence, Match, PrefixCache, PrefixCacheUse
from engine.errors import BackendFailure, EngineError, NoRoom

Buffers = tuple[int, ...]
"""The address on each GPU, by rank."""
_FULL = "the GPU's memory is full; this request begins once another one has ended"


class Lease(NamedTuple):
    """What one launch uses: `first` positions of its prompt are in `buffers` already."""

    buffers: Buffers
    first: int


class KeptCaches:
    """Lends buffers to launches, one to each row, and keeps what they leave. For one thread at a time.

    `size` is one buffer's bytes on one GPU. The logits of a launch that goes on are those of a cold one
    within rounding, not to the bit: how many tokens are left chooses tiles or shares (next_chunk in
    kernels/cuda/prefill.cuh), and decode filled the positions of an answer.
    """

    def __init__(self, devices: Sequence[Device], size: int, budget_bytes: int) -> None:
        self._devices, self._size = devices, size
        self._free: list[Buffers] = []
        self._kept: PrefixCache[Buffers] = PrefixCache(budget_bytes, self._free.append)
        self._is_full = False
        """A row found no memory, and none has ended since."""

    @property
    def use(self) -> PrefixCacheUse:
        return self._kept.use

    @property
    def sequences(self) -> list[KeptSequence]:
        return self._kept.sequences

    def lend(self, job: Job) -> Lease | None:
        """Buffers for a job that has an owner; None if it has none, or memory for none is left."""
        size = self._size * len(self._devices)
        if not job.cache_salt or size > self._kept.use.budget_bytes:
            return None
        match = self._kept.reuse(job.cache_salt, job.tokens)
        if match and not match.copies:
            return Lease(match.value, match.length)
        buffers = self._take()
        if buffers is None:
            return None
        if match and buffers != match.value:
            self._copy(match, buffers)
        return Lease(buffers, match.length if match else 0)

    def lend_row(self, job: Job) -> Lease:
        """Buffers for one of several requests in flight: every one has its own, whole.

        Raises NoRoom if the budget has none left beside those in flight.
        """
        size = self._size * len(self._devices)
        match = self._kept.reserve(job.cache_salt, job.tokens, size, size)
        if match and not match.copies:
            return Lease(match.value, match.length)
        try:
            buffers = self._take()
            if buffers is None:
                raise self._refusal()
            if match and buffers != match.value:
                self._copy(match, buffers)
        except BaseException:
            self._kept.give_back(size)
            raise
        return Lease(buffers, match.length if match else 0)

    def require_room(self) -> None:
        """Raises NoRoom if `lend_row` would, as far as that can be told without asking the GPUs."""
        self._kept.require_room(self._size * len(self._devices))
        if self._is_full and self._kept.in_flight:
            raise NoRoom(_FULL)

    def copy_row(self, source: Lease, target: Lease) -> None:
        """What a row has filled, for another one."""
        self._copy(Match(source.buffers, 0, copies=True), target.buffers)

    def _refusal(self) -> EngineError:
        if self._kept.in_flight > 1:
            self._is_full = True
            return NoRoom(_FULL)
        return BackendFailure("the GPU's memory has no room for keys and values: take a smaller context")

    def take_back_row(self, lease: Lease, job: Job, tokens: Sequence[int]) -> None:
        """As `take_back`, of what `lend_row` lent."""
        self._kept.give_back(self._size * len(self._devices))
        self._is_full = False
        self.take_back(lease, job, tokens)

    def take_back(self, lease: Lease, job: Job, tokens: Sequence[int]) -> None:
        """`tokens` are those whose keys and values the launch has left; empty if it broke down."""
        self._kept.keep(job.cache_salt, tokens, lease.buffers, self._size * len(self._devices))

    def _take(self) -> Buffers | None:
        if self._free:
            return self._free.pop()
        made: list[int] = []
        try:
            for device in self._devices:
                device.activate()
                made.append(device.allocate(self._size, zero=True))
        except BackendFailure:  # the memory is full: what is kept gives way to what runs
            for device, pointer in zip(self._devices, made, strict=False):
                device.activate()
                device.free(pointer)
            self._kept.clear()
            return self._free.pop() if self._free else None
        return tuple(made)

    def _copy(self, match: Match[Buffers], to: Buffers) -> None:
        """The whole buffer: heads lie apart in it, and a gigabyte takes half a millisecond."""
        for device, source, target in zip(self._devices, match.value, to, strict=True):
            device.activate()
            device.call("cuMemcpyDtoD", target, source, self._size)
            device.synchronise()
