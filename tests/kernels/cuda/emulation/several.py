"""A launch of several requests on a CPU, in emulation: each has memory of its own, as on GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.constants import Tuning
from engine.backends.cuda.contract import (
    PEER_POINTERS,
    TOKEN_ID_BITS,
    Control,
    Finish,
    Params,
    Status,
    Together,
)
from engine.backends.cuda.params import biases_of, sampling_of
from engine.backends.cuda.profile import ProfileBuffer
from engine.backends.cuda.shared_memory import table_bytes
from engine.models.weights import Weights
from engine.sampling import SamplingParams
from tests.kernels.cuda.emulation.launch import EmulatedGpu

TRACED = 2
"""Passes of a launch whose steps are kept in full, with the profile."""


@dataclass
class Request:
    """What one request asks of a launch: its tokens from `first` to `prefilled` are read, those before are
    in its cache."""

    tokens: list[int]
    new: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampled: int = 0
    stop_ids: tuple[int, ...] = ()
    first: int = 0
    prefilled: int = 0
    tiles_from: int = 1 << 30
    layers: tuple[int, int] | None = None
    """By tiles: through which they are read; None: all."""
    kv: tuple[int, ...] = ()
    """Where its cache lies on each GPU; empty: that of its seat."""


@dataclass
class Ended:
    """What became of it."""

    ids: list[int]
    finish: Finish


class Seat:
    """A request's memory on one GPU, which launches after this one go on with."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        layout = gpu.layout
        self.kv = new_cache(gpu)
        self.mail = gpu.put(np.zeros(layout.mail_words, np.uint32))
        self.candidates = gpu.put(np.zeros(layout.candidates_bytes, np.uint8))
        self.filters = gpu.put(np.zeros(layout.filter_bytes, np.uint8))
        self.stop_flag = gpu.put(np.zeros(4, np.uint32))
        self.serial = 1


def new_cache(gpu: EmulatedGpu) -> NDArray[np.uint16]:
    """One that holds NaNs, as a launch must write before it reads."""
    return gpu.put(np.full(gpu.layout.kv_halves, 0xFFFF, np.uint16))


def team(
    folder: Path,
    weights: Weights,
    cores: int,
    ranks: int,
    tuning: Tuning | None = None,
    *,
    requests: int,
    filters: bool,
    equal: bool = False,
) -> list[EmulatedGpu]:
    """GPUs that hold a model together."""

    def emulated(rank: int) -> EmulatedGpu:
        of_all = (folder, weights.config, weights, cores, tuning)
        return EmulatedGpu(*of_all, requests=requests, filters=filters, ranks=ranks, rank=rank, equal=equal)

    return [emulated(rank) for rank in range(ranks)]


class EmulatedRows:
    """Launches of up to `gpu.layout.requests`, one request a seat, on GPUs that hold a model together."""

    def __init__(self, gpu: EmulatedGpu, *others: EmulatedGpu) -> None:
        self.gpu, self.gpus = gpu, (gpu, *others)
        self.rows = gpu.layout.requests
        self.seats = [[Seat(each) for _ in range(self.rows)] for each in self.gpus]
        tables = self.rows * table_bytes(gpu.layout.plan) * gpu.layout.plan.cores
        self.prefilled: list[int] = []
        """Positions that the last launch says each prompt is read to."""
        self.profile = ProfileBuffer(gpu.layout, (0, TRACED))
        size = self.profile.size // 8 if gpu.layout.tuning.profile else 0
        self.profiles = [each.put(np.zeros(size, np.uint64)) for each in self.gpus]
        """What the last launch wrote of its time."""
        self._tables = [each.put(np.zeros(tables, np.uint8)) for each in self.gpus]

    def launch(self, requests: Sequence[Request | None], reader: int = 0) -> list[Ended | None]:
        """Nobody sits where None stands; `reader` is the seat whose prompt is read."""
        launch = Running(self, requests, reader)
        launch.run()
        self.prefilled = [status.prefilled for status in launch.statuses]
        return [
            Ended(launch.ids(i), launch.finish(i)) if request and request.new else None
            for i, request in enumerate(requests)
        ]

    def hand_over(
        self, blocks: Sequence[Sequence[Params]], reader: int, layers: tuple[int, int] | None
    ) -> ctypes.Array[Any]:
        """What the kernels take, of each GPU's blocks."""
        if self.rows == 1:
            return (Params * len(blocks))(*chain.from_iterable(blocks))
        handed = (Together * len(blocks))()
        for each, tables, of_gpu in zip(handed, self._tables, blocks, strict=True):
            each.tables, each.reader = tables.ctypes.data, reader
            each.first_layer, each.end_layer = layers or (0, self.gpu.layout.config.layers)
            each.requests[: len(of_gpu)] = of_gpu
        return handed


class Running:
    """One launch. `run` waits for its end; what it leaves can be read meanwhile."""

    def __init__(self, rows: EmulatedRows, requests: Sequence[Request | None], reader: int) -> None:
        self._rows = rows
        self._controls = [Control() for _ in rows.gpus]
        self._statuses = [[Status() for _ in range(rows.rows)] for _ in rows.gpus]
        asked = [request or Request([0], 0) for request in requests]
        asked += [Request([0], 0)] * (rows.rows - len(asked))
        self.rings = [np.zeros(max(1, request.new), np.uint64) for request in asked]
        blocks = [[self._params(g, i, one) for i, one in enumerate(asked)] for g in range(len(rows.gpus))]
        for of_gpu in blocks:
            for i, params in enumerate(of_gpu):
                self._reach(params, [others[i] for others in blocks])
        self._handed = rows.hand_over(blocks, reader, asked[reader].layers)

    @property
    def statuses(self) -> Sequence[Status]:
        """What the first GPU tells of each request."""
        return self._statuses[0]

    def run(self) -> None:
        ended = self._rows.gpu.library.launch(self._handed)
        assert ended, "all threads wait for each other, or one gave up and said why on stderr"
        for seats, statuses in zip(self._rows.seats, self._statuses, strict=True):
            for seat, status, first in zip(seats, statuses, self.statuses, strict=True):
                assert (status.finish, status.passes) == (first.finish, first.passes), "as on all GPUs"
                seat.serial += status.passes

    def words(self, seat: int) -> list[int]:
        """Those of its tokens so far."""
        ring = self.rings[seat].tolist()
        return ring[: ring.index(0)] if 0 in ring else ring

    def ids(self, seat: int) -> list[int]:
        return [word & ((1 << TOKEN_ID_BITS) - 1) for word in self.words(seat)]

    def finish(self, seat: int) -> Finish:
        return Finish(self.statuses[seat].finish)

    def stop(self, seat: int) -> None:
        self._rows.seats[0][seat].stop_flag[0] = 1

    def _params(self, rank: int, i: int, asked: Request) -> Params:
        seat, gpu = self._rows.seats[rank][i], self._rows.gpus[rank]
        seat.stop_flag[:] = 0
        seat.filters[:] = 0
        params = Params(
            rank=rank,
            first=asked.first,
            prefill_end=asked.prefilled,
            tiles_from=asked.tiles_from,
            ids_count=len(asked.tokens),
            max_new=asked.new,
            stop_count=len(asked.stop_ids),
            bias_count=len(asked.sampling.logit_bias),
            sampled_from=len(asked.tokens) - asked.sampled,
            blocks_a_split=gpu.layout.tuning.blocks_a_split,
            spin_budget_ns=1 << 60,
            serial=seat.serial,
            sampling=sampling_of(asked.sampling, gpu.layout.sharding.whole.vocab),
            ids=gpu.put(np.asarray(asked.tokens, np.int32)).ctypes.data,
            stop_ids=gpu.put(np.asarray(asked.stop_ids or (-1,), np.int32)).ctypes.data,
            biases=gpu.put(np.frombuffer(biases_of(asked.sampling), np.uint8)).ctypes.data,
            control=ctypes.addressof(self._controls[rank]),
            status=ctypes.addressof(self._statuses[rank][i]),
            ring=self.rings[i].ctypes.data,
        )
        params.profile, params.trace_last = self._rows.profiles[rank].ctypes.data, TRACED
        for name, array in gpu.memory.items():
            setattr(params, name, array.ctypes.data)
        for name in ("kv", "mail", "candidates", "filters", "stop_flag"):
            setattr(params, name, getattr(seat, name).ctypes.data)
        if asked.kv:
            params.kv = asked.kv[rank]
        return params

    @staticmethod
    def _reach(params: Params, team: Sequence[Params]) -> None:
        """Where the request has its memory on all GPUs."""
        for peer, other in zip(params.peers, team, strict=False):
            for name in PEER_POINTERS:
                setattr(peer, name, getattr(other, name))
