"""Rows as the backend schedules them, on emulated kernels that run on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Job, Token
from engine.backends.cuda.contract import TOKEN_ID_BITS, Finish
from engine.backends.cuda.kept_caches import Lease
from engine.backends.cuda.rows import Part, RowScheduler, Ways
from engine.errors import BackendFailure
from engine.models.weights import Weights
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.emulation.several import EmulatedRows, Request, Running, new_cache


class EmulatedBackend:
    """A model whose launches take one request, or up to `rows`."""

    def __init__(self, folder: Path, weights: Weights, cores: int, rows: int, *, filters: bool) -> None:
        config = weights.config
        self._kernels = [
            EmulatedRows(EmulatedGpu(folder, config, weights, cores, requests=requests, filters=filters))
            for requests in (1, rows)
        ]
        layout = self._kernels[0].gpu.layout
        self._spare = [new_cache(self._kernels[0].gpu) for _ in range(rows)]
        self._lent: dict[int, NDArray[np.uint16]] = {}
        self.launches: list[int] = []
        """How many requests each had."""
        self.scheduler = RowScheduler(
            config.context,
            Ways(layout.prefill_chunk, layout.tiles_from),
            lend=self._lend,
            take_back=self._take_back,
            copy=self._copy,
            begin=self._begin,
        )

    def _lend(self, _job: Job) -> Lease:
        cache = self._spare.pop()
        cache[:] = 0xFFFF
        self._lent[cache.ctypes.data] = cache
        return Lease((cache.ctypes.data,), 0)

    def _take_back(self, lease: Lease, _job: Job, _tokens: Sequence[int]) -> None:
        self._spare.append(self._lent.pop(lease.buffers[0]))

    def _copy(self, source: Lease, target: Lease) -> None:
        self._lent[target.buffers[0]][:] = self._lent[source.buffers[0]]

    def _begin(self, parts: Sequence[Part]) -> EmulatedLaunch:
        self.launches.append(len(parts))
        alone = len(parts) == 1 and parts[0].decodes
        return EmulatedLaunch(self._kernels[0 if alone else 1], parts)


class EmulatedLaunch:
    """Implements engine.backends.cuda.rows.RunningLaunch."""

    failure: BackendFailure | None = None

    def __init__(self, rows: EmulatedRows, parts: Sequence[Part]) -> None:
        reader = next((i for i, part in enumerate(parts) if part.reads), 0)
        self._running = Running(rows, [_request(part) for part in parts], reader)
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


def _request(part: Part) -> Request:
    plan = part.plan
    return Request(
        tokens=list(plan.ids),
        new=plan.max_new,
        sampling=plan.sampling,
        sampled=plan.sampled,
        stop_ids=tuple(plan.stop_ids),
        first=plan.first,
        prefilled=plan.prefill_end,
        tiles_from=1 << 30 if plan.tiles_from is None else plan.tiles_from,
        kv=plan.caches[0],
    )
