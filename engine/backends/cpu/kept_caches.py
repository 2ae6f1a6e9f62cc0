"""Keys and values of recent sequences in the kernel's memory, and which launch goes on from which."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.backends.base import Job
from engine.backends.cpu.library import check
from engine.backends.prefix_cache import KeptSequence, Match, PrefixCache, PrefixCacheUse
from engine.kv_cache import CacheFormat, KeysAndValues
from engine.models.config import ModelConfig


class Lease(NamedTuple):
    """The cache that one request fills: `cached` positions of its prompt are in it already."""

    cache: int = 0
    cached: int = 0
    reserved: int = 0
    """Bytes of the budget that are its own until it is taken back."""


NOTHING_KEPT = Lease()
"""Number 0 came with the kernel."""


class KeptCaches:
    """Lends a cache to each request in flight and keeps what it leaves. For one thread at a time.

    A cache has room for the whole context, and takes memory only for the positions that were filled. What is
    kept and what is lent share the budget.
    """

    def __init__(
        self,
        native: ctypes.CDLL,
        kernel: ctypes.c_void_p,
        config: ModelConfig,
        budget_bytes: int,
        form: CacheFormat = CacheFormat.FP16,
    ) -> None:
        self._library, self._kernel, self._context = native, kernel, config.context
        self._position_bytes = 2 * config.layers * config.kv_dim * form.bytes_each
        self._shape = config.layers, config.kv_heads, config.head_dim
        self._kept: PrefixCache[int] = PrefixCache(budget_bytes, self._remove)
        self._spare = [NOTHING_KEPT.cache]
        """Caches whose content nobody wants."""

    @property
    def use(self) -> PrefixCacheUse:
        return self._kept.use

    @property
    def sequences(self) -> list[KeptSequence]:
        return self._kept.sequences

    def lend(self, job: Job) -> Lease:
        """A cache with as much of the job's prompt in it as is kept.

        Raises NoRoom if the budget has no room for all that the job may fill beside those in flight.
        """
        prompt = len(job.tokens) * self._position_bytes
        most = min(self._context, len(job.tokens) + job.max_tokens) * self._position_bytes
        owner = job.cache_salt if prompt <= self._kept.use.budget_bytes else ""
        match = self._kept.reserve(owner, job.tokens, prompt, most)
        try:
            lease = self._fill(match) if owner else self.lend_unreserved()
        except BaseException:
            self._kept.give_back(most)
            raise
        return lease._replace(reserved=most)

    def _fill(self, match: Match[int] | None) -> Lease:
        if match and not match.copies:
            return Lease(match.value, match.length)
        cache = self._add()
        if match:
            self._copy(match, cache)
        return Lease(cache, match.length if match else 0)

    def lend_unreserved(self) -> Lease:
        """A cache for what passes through and is not kept: what scoring reads takes nobody's place."""
        return Lease(self._spare.pop() if self._spare else self._add())

    def take_back(self, lease: Lease, job: Job, tokens: Sequence[int]) -> None:
        """`tokens` are those whose keys and values the request has left."""
        if lease.reserved:
            self._kept.give_back(lease.reserved)
        if lease.cache == NOTHING_KEPT.cache:
            self._spare.append(lease.cache)
        else:
            self._kept.keep(job.cache_salt, tokens, lease.cache, len(tokens) * self._position_bytes)

    def read(self, lease: Lease, positions: int) -> KeysAndValues:
        """What is in a cache that nothing fills."""
        layers, heads, dim = self._shape
        both = KeysAndValues(*(np.empty((layers, heads, positions, dim), np.float32) for _ in range(2)))
        at = (kept.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for kept in both)
        check(self._library.ml_cache_read(self._kernel, lease.cache, positions, *at), "reading a sequence")
        return both

    def _add(self) -> int:
        cache = ctypes.c_int32()
        check(self._library.ml_cache_add(self._kernel, ctypes.byref(cache)), "making room for a sequence")
        return cache.value

    def _copy(self, match: Match[int], to: int) -> None:
        code = self._library.ml_cache_copy(self._kernel, match.value, to, match.length)
        check(code, "copying a kept sequence")

    def _remove(self, cache: int) -> None:
        check(self._library.ml_cache_remove(self._kernel, cache), "freeing a kept sequence")
