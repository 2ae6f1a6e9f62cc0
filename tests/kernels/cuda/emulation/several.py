"""A launch of several requests on a CPU, in emulation: each request has memory of its own, as on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
from engine.backends.cuda.shared_memory import table_bytes
from engine.sampling import SamplingParams
from tests.kernels.cuda.emulation.launch import EmulatedGpu


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
    kv: int | None = None
    """The address of its cache; None: that of its seat."""


@dataclass
class Ended:
    """What became of it."""

    ids: list[int]
    finish: Finish


class Seat:
    """The memory of one request, which launches after this one go on with."""

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


class EmulatedRows:
    """Launches of up to `gpu.layout.requests`, one request a seat."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        self.gpu = gpu
        self.rows = gpu.layout.requests
        self.seats = [Seat(gpu) for _ in range(self.rows)]
        self._tables = gpu.put(
            np.zeros(self.rows * table_bytes(gpu.layout.plan) * gpu.layout.plan.cores, np.uint8)
        )

    def launch(self, requests: Sequence[Request | None], reader: int = 0) -> list[Ended | None]:
        """Nobody sits where None stands; `reader` is the seat whose prompt is read."""
        launch = Running(self, requests, reader)
        launch.run()
        return [
            Ended(launch.ids(i), launch.finish(i)) if request and request.new else None
            for i, request in enumerate(requests)
        ]

    def hand_over(self, blocks: Sequence[Params], reader: int) -> ctypes.Structure:
        """What the kernel takes."""
        if self.rows == 1:
            return blocks[0]
        handed = Together(tables=self._tables.ctypes.data, reader=reader)
        for i, params in enumerate(blocks):
            handed.requests[i] = params
        return handed


class Running:
    """One launch. `run` waits for its end; what it leaves can be read meanwhile."""

    def __init__(self, rows: EmulatedRows, requests: Sequence[Request | None], reader: int) -> None:
        self._rows = rows
        self._control = Control()
        self.statuses = [Status() for _ in rows.seats]
        asked = [request or Request([0], 0) for request in requests]
        asked += [Request([0], 0)] * (rows.rows - len(asked))
        self.rings = [np.zeros(max(1, request.new), np.uint64) for request in asked]
        blocks = [self._params(i, request) for i, request in enumerate(asked)]
        self._handed = rows.hand_over(blocks, reader)

    def run(self) -> None:
        ended = self._rows.gpu.library.launch(ctypes.byref(self._handed))
        assert ended, "all threads wait for each other, or one gave up and said why on stderr"
        for seat, status in zip(self._rows.seats, self.statuses, strict=True):
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
        self._rows.seats[seat].stop_flag[0] = 1

    def _params(self, i: int, asked: Request) -> Params:
        seat, gpu = self._rows.seats[i], self._rows.gpu
        seat.stop_flag[:] = 0
        seat.filters[:] = 0
        params = Params(
            first=asked.first,
            prefill_end=asked.prefilled,
            tiles_from=asked.tiles_from,
            ids_count=len(asked.tokens),
            max_new=asked.new,
            stop_count=len(asked.stop_ids),
            bias_count=len(asked.sampling.logit_bias),
            sampled_from=len(asked.tokens) - asked.sampled,
            slots_in_flight=2,
            blocks_a_split=gpu.layout.tuning.blocks_a_split,
            spin_budget_ns=1 << 60,
            serial=seat.serial,
            sampling=sampling_of(asked.sampling, gpu.layout.config.vocab),
            ids=gpu.put(np.asarray(asked.tokens, np.int32)).ctypes.data,
            stop_ids=gpu.put(np.asarray(asked.stop_ids or (-1,), np.int32)).ctypes.data,
            biases=gpu.put(np.frombuffer(biases_of(asked.sampling), np.uint8)).ctypes.data,
            control=ctypes.addressof(self._control),
            status=ctypes.addressof(self.statuses[i]),
            ring=self.rings[i].ctypes.data,
        )
        for name, array in gpu.memory.items():
            setattr(params, name, array.ctypes.data)
        for name in ("kv", "mail", "candidates", "filters", "stop_flag"):
            setattr(params, name, getattr(seat, name).ctypes.data)
        if asked.kv is not None:
            params.kv = asked.kv
        for name in PEER_POINTERS:
            setattr(params.peers[0], name, getattr(params, name))
        return params
