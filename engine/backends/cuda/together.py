"""Launches of rows: one request by the kernel for one, several by a kernel compiled for 2, 4 or 8."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Token
from engine.backends.cuda.constants import Layout, make_layout
from engine.backends.cuda.contract import (
    THREADS,
    Control,
    Finish,
    HostBlock,
    Params,
    Status,
    Together,
)
from engine.backends.cuda.launch import (
    BUDGETS_A_PASS,
    START_GRACE_S,
    CudaLaunch,
    DeviceContext,
    LaunchPlan,
    count_written,
    params_of,
    tokens_in,
    watchdog_report,
)
from engine.backends.cuda.resources import LaunchResources
from engine.backends.cuda.rows import Part, RunningLaunch
from engine.backends.cuda.seats import SeatSizes
from engine.backends.cuda.upload import Upload
from engine.errors import BackendFailure, DeviceLost
from engine.models.config import HeadKind
from engine.settings import MOST_ROWS


def shares_launches(layout: Layout) -> bool:
    """Whether several requests of the model can share a launch: dense ones in 16 bits on one GPU, without
    norms after modules, whose head does not take its lanes side by side."""
    wide = layout.sharding.whole.lanes.head is HeadKind.LANE and layout.sharding.streams > 1
    dense = layout.config.experts is None and not layout.plan.is_packed
    return dense and layout.prefills and layout.sharding.ranks == 1 and not wide


def several_layout(layout: Layout, context: int | None, requests: int) -> Layout:
    """That of the kernel for so many requests, of the same model."""
    tuning = replace(layout.tuning, slot_units=None)
    return make_layout(layout.plan, layout.weights, tuning, context, layout.sharding, requests)


class Seats:
    """Device memory of the rows: each has a mailbox and exchanges of its own, whoever sits there."""

    def __init__(self, context: DeviceContext, rows: int) -> None:
        device, self.sizes = context.device, SeatSizes.of(context.layout)
        self.rows = rows
        self.mail = device.allocate(rows * self.sizes.mail, zero=True)
        self.candidates = device.allocate(rows * self.sizes.candidates, zero=True)
        self.filters = device.allocate(rows * self.sizes.filters, zero=True)
        self.tables = device.allocate(rows * self.sizes.tables)
        self.stop_flags = device.allocate(16 * MOST_ROWS, zero=True)
        self.serials = [1] * rows

    def place(self, params: Params, seat: int) -> None:
        """Has a request use the seat's memory."""
        params.mail = self.mail + seat * self.sizes.mail
        params.candidates = self.candidates + seat * self.sizes.candidates
        params.filters = self.filters + seat * self.sizes.filters
        params.stop_flag = self.stop_flags + 16 * seat
        params.serial = self.serials[seat] & 0xFFFFFFFF
        for name in ("mail", "candidates", "filters"):
            setattr(params.peers[0], name, getattr(params, name))

    def empty(self, context: DeviceContext) -> None:
        """After an abort they hold words of an unfinished pass."""
        device = context.device
        device.fill(self.mail, self.rows * self.sizes.mail)
        device.fill(self.candidates, self.rows * self.sizes.candidates)
        device.synchronise()
        self.serials = [1] * self.rows


class RowLaunches:
    """Starts what a RowScheduler asks for, with layouts and kernels by the requests that they are for."""

    def __init__(
        self, context: DeviceContext, layouts: Mapping[int, Layout], kernels: Mapping[int, Any]
    ) -> None:
        self._context, self._layouts, self._kernels = context, layouts, kernels
        self._seats = Seats(context, max(layouts))

    def begin(self, parts: Sequence[Part]) -> RunningLaunch:
        if len(parts) == 1 and parts[0].decodes:
            return LoneLaunch(self._context, parts[0].plan)
        size = next(size for size in sorted(self._layouts) if size >= len(parts))
        launch = SeveralLaunch(self._context, self._seats, self._layouts[size], [part.plan for part in parts])
        try:
            launch.start(self._kernels[size])
        except BaseException:
            launch.close()
            raise
        return launch


class LoneLaunch:
    """A row alone. Implements rows.RunningLaunch."""

    def __init__(self, context: DeviceContext, plan: LaunchPlan) -> None:
        self._context = context
        self._launch = CudaLaunch(context, plan)
        try:
            self._launch.start()
        except BaseException:
            self._launch.close()
            raise

    @property
    def ended(self) -> bool:
        _ = self._launch.outcome  # looks
        return self._launch.ended

    @property
    def failure(self) -> BackendFailure | None:
        return self._launch.breakdown

    def take(self, part: int) -> Sequence[Token]:  # noqa: ARG002  there is one
        return self._launch.take()

    def finish(self, part: int) -> Finish:  # noqa: ARG002
        if self._launch.breakdown is not None:
            return Finish.ABORTED
        outcome = self._launch.outcome
        return Finish[outcome.finish_reason.upper()] if outcome else Finish.RUNNING

    def prefilled(self, part: int) -> tuple[int, int]:  # noqa: ARG002
        return self._launch.prefilled, self._launch.prefill_ns

    def stop(self, part: int | None = None) -> None:  # noqa: ARG002
        self._launch.stop()

    def close(self) -> None:
        self._launch.close()
        if self._launch.needs_recovery:
            self._context.empty_mailboxes()


class SeveralLaunch:
    """A launch of several rows. Implements rows.RunningLaunch.

    Made ready by the constructor; `start` makes it run.
    """

    def __init__(
        self, context: DeviceContext, seats: Seats, layout: Layout, plans: Sequence[LaunchPlan]
    ) -> None:
        self._context, self._seats, self._layout, self._plans = context, seats, layout, plans
        self._resources = LaunchResources(context.pool)
        self._read = [0] * len(plans)
        self._failure: BackendFailure | None = None
        self._ended = self._usable = True
        try:
            self._prepare()
        except BaseException:
            with suppress(BackendFailure):  # the failure that led here says more
                self._resources.release()
            raise

    def _prepare(self) -> None:
        device = self._context.device
        device.activate()
        self._stream, self._side = self._resources.stream(), self._resources.stream()
        device.fill(self._context.memory.control, ctypes.sizeof(Control), 0, self._stream)
        device.fill(self._seats.stop_flags, 16 * MOST_ROWS, 0, self._stream)
        device.fill(self._seats.filters, len(self._plans) * self._seats.sizes.filters, 0, self._stream)
        most = max(1, *(plan.max_new for plan in self._plans))
        block = ctypes.sizeof(HostBlock)
        each = block + 8 * most
        host, address = self._resources.allocate_mapped(each * len(self._plans) + 16 * MOST_ROWS)
        self._flags = host[each * len(self._plans) :]
        self._flags[:] = 1
        self._blocks, self._rings = list[HostBlock](), list[NDArray[np.uint64]]()
        self._together = Together(tables=self._seats.tables, reader=0)
        data = Upload()
        for i, plan in enumerate(self._plans):
            at = i * each
            self._blocks.append(HostBlock.from_buffer(host[at:].data))
            self._rings.append(host[at + block : at + each].view(np.uint64))
            self._blocks[i].status.prefilled = plan.first
            params = params_of(self._context, plan)
            params.ring, params.status = address + at + block, address + at
            params.slots_in_flight = min(params.slots_in_flight, self._layout.slots - 1)
            self._seats.place(params, i)
            data.add(params, plan.ids, plan.stop_ids, plan.sampling)
            self._together.requests[i] = params
            if plan.first < plan.prefill_end:
                self._together.reader = i
        base = self._resources.put(data.joined())
        for i in range(len(self._plans)):
            data.point(self._together.requests[i], i, base)
        for i in range(len(self._plans), MOST_ROWS):  # nobody's: they decode nothing
            self._together.requests[i] = self._together.requests[0]
            self._together.requests[i].max_new = 0
        device.call("cuStreamSynchronize", self._stream)
        device.synchronise()

    def start(self, kernel: Any) -> None:
        self._moved: tuple[tuple[int, int], ...] = ()
        self._moved_at = time.perf_counter()
        self._context.device.launch(
            kernel,
            (self._layout.plan.cores, 1),
            THREADS,
            self._layout.shared_bytes,
            (self._together,),
            stream=self._stream,
            all_resident=self._context.all_resident,
        )
        self._ended = False

    @property
    def ended(self) -> bool:
        if self._ended:
            return True
        device = self._context.device
        result = device.driver.CUresult
        (status,) = device.driver.cuStreamQuery(self._stream)
        if status == result.CUDA_SUCCESS:
            self._finish()
        elif status != result.CUDA_ERROR_NOT_READY:
            self._lose(f"GPU {device.ordinal} was lost while it ran requests ({status.name})")
        elif self._lifeless():
            device.abandoned = True
            self._lose(f"GPU {device.ordinal} was lost while it ran requests: nothing of any for too long")
        return self._ended

    def _finish(self) -> None:
        self._ended = True
        for seat, block in enumerate(self._blocks):
            self._seats.serials[seat] += block.status.passes
        self._failure = breakdown_of(self._context, self._plans, [block.status for block in self._blocks])
        if self._failure is not None:
            self._seats.empty(self._context)

    def _lose(self, what: str) -> None:
        self._ended, self._usable = True, False
        self._failure = DeviceLost(what)

    def _lifeless(self) -> bool:
        moved = tuple(
            (int(b.status.prefilled), read) for b, read in zip(self._blocks, self._read, strict=True)
        )
        now = time.perf_counter()
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        return now - self._moved_at > START_GRACE_S + BUDGETS_A_PASS * self._context.spin_budget_s

    @property
    def failure(self) -> BackendFailure | None:
        return self._failure

    def take(self, part: int) -> Sequence[Token]:
        ring, begin = self._rings[part], self._read[part]
        self._read[part] = count_written(ring, begin)
        return tokens_in(ring[begin : self._read[part]])

    def finish(self, part: int) -> Finish:
        return Finish(self._blocks[part].status.finish)

    def prefilled(self, part: int) -> tuple[int, int]:
        status = self._blocks[part].status
        return int(status.prefilled), int(status.prefill_ns)

    def stop(self, part: int | None = None) -> None:
        """A copy engine does this; a kernel would find no room beside the one that runs."""
        if self._ended:
            return
        first, count = (0, MOST_ROWS) if part is None else (part, 1)
        address = self._seats.stop_flags + 16 * first
        self._context.device.call(
            "cuMemcpyHtoDAsync", address, self._flags.ctypes.data, 16 * count, self._side
        )

    def close(self) -> None:
        """Waits for its end, and gives back what it held."""
        with suppress(BackendFailure):  # a GPU that is lost has ended it
            self.stop()
        while not self.ended:
            time.sleep(1e-3)
        if self._usable:
            self._resources.release()


def breakdown_of(
    context: DeviceContext, plans: Sequence[LaunchPlan], statuses: Sequence[Status]
) -> BackendFailure | None:
    """What the watchdog found in a launch that is over. Where nobody decodes, no finish tells of it."""
    finishes = [status.finish for plan, status in zip(plans, statuses, strict=True) if plan.max_new]
    if finishes and not any(finish in (Finish.RUNNING, Finish.ABORTED) for finish in finishes):
        return None
    stood_still, report = watchdog_report(context)
    return BackendFailure(report) if finishes or stood_still else None
