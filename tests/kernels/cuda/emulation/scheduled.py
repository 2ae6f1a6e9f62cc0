"""Rows as the backend schedules them, on emulated kernels that run on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Job, Token
from engine.backends.cuda.contract import TOKEN_ID_BITS, Finish
from engine.backends.cuda.kept_caches import Lease
from engine.backends.cuda.reading import Ways
from engine.backends.cuda.rows import Part, RowScheduler
from engine.errors import BackendFailure
from engine.models.weights import Weights
from tests.kernels.cuda.emulation.several import EmulatedRows, Request, Running, new_cache, team

Caches = tuple[NDArray[np.uint16], ...]
"""One on each GPU."""


class EmulatedBackend:
    """A model whose launches take one request, or up to `rows`, on so many GPUs together."""

    def __init__(
        self,
        folder: Path,
        weights: Weights,
        cores: int,
        rows: int,
        *,
        filters: bool,
        ranks: int = 1,
        tiles_from: int | None = None,
    ) -> None:
        """Prompts go by tiles from so many tokens on; None: where that is the faster way on a GPU."""
        self._kernels = [
            EmulatedRows(*team(folder, weights, cores, ranks, requests=requests, filters=filters))
            for requests in (1, rows)
        ]
        config, ways = weights.config, Ways.of(self._kernels[0].gpu.layout)
        self._tiles_from = ways.tiles_from if tiles_from is None else tiles_from
        self._spare = [tuple(new_cache(gpu) for gpu in self._kernels[0].gpus) for _ in range(rows)]
        self._lent: dict[tuple[int, ...], Caches] = {}
        self.launches: list[int] = []
        """How many requests each had."""
        self.layers: list[tuple[int, int]] = []
        """Those of each launch that reads through some of them."""
        self.scheduler = RowScheduler(
            config.context,
            replace(ways, tiles_from=self._tiles_from),
            lend=self._lend,
            take_back=self._take_back,
            copy=self._copy,
            begin=self._begin,
        )

    def _lend(self, _job: Job) -> Lease:
        caches = self._spare.pop()
        for cache in caches:
            cache[:] = 0xFFFF
        buffers = tuple(cache.ctypes.data for cache in caches)
        self._lent[buffers] = caches
        return Lease(buffers, 0)

    def _take_back(self, lease: Lease, _job: Job, _tokens: Sequence[int]) -> None:
        self._spare.append(self._lent.pop(lease.buffers))

    def _copy(self, source: Lease, target: Lease) -> None:
        for to, of in zip(self._lent[target.buffers], self._lent[source.buffers], strict=True):
            to[:] = of

    def _begin(self, parts: Sequence[Part]) -> EmulatedLaunch:
        self.launches.append(len(parts))
        self.layers += [part.plan.layers for part in parts if part.plan.layers is not None]
        alone = len(parts) == 1 and parts[0].decodes
        return EmulatedLaunch(self._kernels[0 if alone else 1], parts, self._tiles_from)


class EmulatedLaunch:
    """Implements engine.backends.cuda.rows.RunningLaunch."""

    failure: BackendFailure | None = None

    def __init__(self, rows: EmulatedRows, parts: Sequence[Part], tiles_from: int) -> None:
        """With `tiles_from` for who does not say so itself."""
        reader = next((i for i, part in enumerate(parts) if part.reads), 0)
        self._running = Running(rows, [_request(part, tiles_from) for part in parts], reader)
        self._read = [0] * len(parts)
        self._first = [part.plan.first for part in parts]
        self._thread = threading.Thread(target=self._running.run)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def take(self, part: int) -> Sequence[Token]:
        words = self._running.words(part)[self._read[part] :]
        self._read[part] += len(words)
        return [Token(word & (1 << TOKEN_ID_BITS) - 1, word >> TOKEN_ID_BITS) for word in words]

    def finish(self, part: int) -> Finish:
        return self._running.finish(part)

    def prefilled(self, part: int) -> tuple[int, int]:
        return max(self._first[part], self._running.statuses[part].prefilled), 1

    def stop(self, part: int | None = None) -> None:
        for i in range(len(self._read)) if part is None else (part,):
            self._running.stop(i)

    def close(self) -> None:
        self._thread.join()


def _request(part: Part, tiles_from: int) -> Request:
    plan = part.plan
    return Request(
        tokens=list(plan.ids),
        new=plan.max_new,
        sampling=plan.sampling,
        sampled=plan.sampled,
        stop_ids=tuple(plan.stop_ids),
        first=plan.first,
        prefilled=plan.prefill_end,
        tiles_from=tiles_from if plan.tiles_from is None else plan.tiles_from,
        layers=plan.layers,
        kv=plan.caches,
    )
