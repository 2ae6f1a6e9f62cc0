"""What a launch has in pinned host memory: each request's status and token ring, which its kernel writes and
the host reads meanwhile, and behind them what is copied to the GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Token
from engine.backends.cuda.contract import TOKEN_ID_BITS, HostBlock, Params
from engine.backends.cuda.driver import Device
from engine.backends.cuda.resources import LaunchResources
from engine.backends.cuda.upload import Upload
from engine.sampling import SamplingParams

FLAG_BYTES = 16
"""From one request's stop flag to the next one's; a flag is the first word of them."""
_RING_AT = ctypes.sizeof(HostBlock)


class Asked(Protocol):
    """What a request's part of the memory depends on (launch.LaunchPlan)."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def stop_ids(self) -> frozenset[int]: ...
    @property
    def sampling(self) -> SamplingParams: ...
    @property
    def first(self) -> int: ...
    @property
    def max_new(self) -> int: ...


class RequestView:
    """What its kernel tells of one request. The ring holds a word a token, 0 where there is none yet."""

    def __init__(self, host: NDArray[np.uint8]) -> None:
        self.status = HostBlock.from_buffer(host.data).status
        self.ring: NDArray[np.uint64] = host[_RING_AT:].view(np.uint64)
        self._written = self._taken = 0

    @property
    def prefilled(self) -> int:
        """Positions of its prompt that are filled."""
        return int(self.status.prefilled)

    @property
    def prefill_ns(self) -> int:
        """Nanoseconds of the launch when `prefilled` tokens were there."""
        return int(self.status.prefill_ns)

    @property
    def shown(self) -> tuple[int, int]:
        """What changes while the kernel goes on: positions filled and tokens written."""
        return self.prefilled, self._count()

    def take(self) -> list[Token]:
        """Tokens since the last call."""
        begin, self._taken = self._taken, self._count()
        return _tokens_in(self.ring[begin : self._taken])

    def tokens(self) -> list[Token]:
        """All there are."""
        return _tokens_in(self.ring[: self._count()])

    def detach(self) -> None:
        """Keeps what there is: the memory is lent to another launch from here on."""
        self.status, self.ring = type(self.status).from_buffer_copy(self.status), self.ring.copy()

    def _count(self) -> int:
        written = self._written
        while written < len(self.ring) and self.ring[written]:
            written += 1
        self._written = written
        return written


class HostSide:
    """The pinned memory of a launch. `params` and `asked` have one of each request."""

    def __init__(
        self,
        device: Device,
        resources: LaunchResources,
        stream: Any,
        params: Sequence[Params],
        asked: Sequence[Asked],
        flags: int = 1,
    ) -> None:
        """Points `params` at it, and sends the GPU what they read beside them: one copy, on `stream`.

        `flags` are so many raised ones, side by side: to stop is to copy them.
        """
        upload = Upload()
        for each, one in zip(params, asked, strict=True):
            upload.add(each, one.ids, one.stop_ids, one.sampling)
        data = upload.joined()
        sizes = (_RING_AT + 8 * max(1, one.max_new) for one in asked)
        *begins, flags_at = accumulate(sizes, initial=0)
        data_at = flags_at + flags * FLAG_BYTES
        host, address = resources.allocate_mapped(data_at + len(data))
        ends = (*begins[1:], flags_at)
        self.views = [RequestView(host[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        for each, one, begin, view in zip(params, asked, begins, self.views, strict=True):
            view.status.prefilled = one.first
            each.status, each.ring = address + begin, address + begin + _RING_AT
        self.flags: NDArray[np.uint32] = host[flags_at:data_at].view(np.uint32)
        self.flags[:] = 1
        host[data_at:] = data
        base = resources.memory(len(data))
        device.upload_pinned(base, host[data_at:], stream)
        for i, each in enumerate(params):
            upload.point(each, i, base)


def _tokens_in(words: NDArray[np.uint64]) -> list[Token]:
    """The tokens of words of a ring: an id in the low bits, above it the launch's clock in ns."""
    return [Token(word & (1 << TOKEN_ID_BITS) - 1, word >> TOKEN_ID_BITS) for word in words.tolist()]
