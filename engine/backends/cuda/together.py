"""Launches of rows: one request by the kernel for one, several by a kernel compiled for 2, 4 or 8."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from engine.backends.base import Token
from engine.backends.cuda.constants import Layout, make_layout
from engine.backends.cuda.contract import (
    THREADS,
    Control,
    Finish,
    Params,
    Status,
    Together,
)
from engine.backends.cuda.driver import Device
from engine.backends.cuda.host_side import FLAG_BYTES, HostSide
from engine.backends.cuda.launch import (
    CudaLaunch,
    DeviceContext,
    LaunchPlan,
    params_of,
    watchdog_report,
)
from engine.backends.cuda.resources import LaunchResources
from engine.backends.cuda.rows import Part, RunningLaunch
from engine.backends.cuda.seats import SeatSizes
from engine.backends.cuda.watch import Watch
from engine.errors import BackendFailure, DeviceLost
from engine.settings import MOST_ROWS

_STOP_FLAGS_AT = -(-ctypes.sizeof(Control) // 256) * 256
_FILTERS_AT = _STOP_FLAGS_AT + -(-FLAG_BYTES * MOST_ROWS // 256) * 256
"""Behind the Control, as allocations of their own lie."""


def several_layout(layout: Layout, context: int | None, requests: int) -> Layout:
    """That of the kernel for so many requests, of the same model."""
    return make_layout(layout.plan, layout.weights, layout.tuning, context, layout.sharding, requests)


class Seats:
    """Device memory of the rows: each has a mailbox and exchanges of its own, whoever sits there."""

    def __init__(self, context: DeviceContext, rows: int) -> None:
        device, self.sizes = context.device, SeatSizes.of(context.layout)
        self.rows = rows
        self.mail = device.allocate(rows * self.sizes.mail, zero=True)
        self.candidates = device.allocate(rows * self.sizes.candidates, zero=True)
        self.tables = device.allocate(rows * self.sizes.tables)
        self.control = device.allocate(_FILTERS_AT + rows * self.sizes.filters, zero=True)
        """What every launch finds cleared begins here: the Control, stop flags and filters, side by side."""
        self.stop_flags = self.control + _STOP_FLAGS_AT
        self.filters = self.control + _FILTERS_AT
        self.serials = [1] * rows

    def place(self, params: Params, seat: int) -> None:
        """Has a request use the seat's memory."""
        params.mail = self.mail + seat * self.sizes.mail
        params.candidates = self.candidates + seat * self.sizes.candidates
        params.filters = self.filters + seat * self.sizes.filters
        params.control = self.control
        params.stop_flag = self.stop_flags + FLAG_BYTES * seat
        params.serial = self.serials[seat] & 0xFFFFFFFF
        for name in ("mail", "candidates", "filters", "control"):
            setattr(params.peers[0], name, getattr(params, name))

    def clear(self, device: Device, requests: int, stream: Any) -> None:
        """What a launch of so many requests must find cleared."""
        device.fill(self.control, _FILTERS_AT + requests * self.sizes.filters, 0, stream)

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
        self._seats.clear(device, len(self._plans), self._stream)
        requests = [self._params(seat, plan) for seat, plan in enumerate(self._plans)]
        host = HostSide(device, self._resources, self._stream, requests, self._plans, flags=MOST_ROWS)
        self._views, self._flags = host.views, host.flags
        self._together = Together(tables=self._seats.tables, reader=self._reader())
        self._together.requests[: len(requests)] = requests
        for i in range(len(requests), MOST_ROWS):  # nobody's: they decode nothing
            self._together.requests[i] = requests[0]
            self._together.requests[i].max_new = 0
        self._watch = Watch(device, self._stream, self._context.spin_budget_s)
        device.synchronise()

    def _params(self, seat: int, plan: LaunchPlan) -> Params:
        params = params_of(self._context, plan)
        params.slots_in_flight = min(params.slots_in_flight, self._layout.slots - 1)
        self._seats.place(params, seat)
        return params

    def _reader(self) -> int:
        """The last request of which a piece of its prompt is read; 0 if there is none."""
        readers = [i for i, plan in enumerate(self._plans) if plan.first < plan.prefill_end]
        return readers[-1] if readers else 0

    def start(self, kernel: Any) -> None:
        self._watch.begin()
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
        if self._watch.has_ended(tuple(view.shown for view in self._views)):
            self._finish()
        elif self._watch.loss:
            self._ended, self._usable = True, False
            self._failure = DeviceLost(self._watch.loss)
        return self._ended

    def _finish(self) -> None:
        self._ended = True
        statuses = [view.status for view in self._views]
        for seat, status in enumerate(statuses):
            self._seats.serials[seat] += status.passes
        self._failure = breakdown_of(self._context, self._seats.control, self._plans, statuses)
        if self._failure is not None:
            self._seats.empty(self._context)

    @property
    def failure(self) -> BackendFailure | None:
        return self._failure

    def take(self, part: int) -> Sequence[Token]:
        return self._views[part].take()

    def finish(self, part: int) -> Finish:
        return Finish(self._views[part].status.finish)

    def prefilled(self, part: int) -> tuple[int, int]:
        return self._views[part].prefilled, self._views[part].prefill_ns

    def stop(self, part: int | None = None) -> None:
        """A copy engine does this; a kernel would find no room beside the one that runs."""
        if self._ended:
            return
        first, count = (0, MOST_ROWS) if part is None else (part, 1)
        address = self._seats.stop_flags + FLAG_BYTES * first
        size = FLAG_BYTES * count
        self._context.device.call("cuMemcpyHtoDAsync", address, self._flags.ctypes.data, size, self._side)

    def close(self) -> None:
        """Waits for its end, and gives back what it held."""
        with suppress(BackendFailure):  # a GPU that is lost has ended it
            self.stop()
        while not self.ended:
            time.sleep(1e-3)
        if self._usable:
            self._resources.release()


def breakdown_of(
    context: DeviceContext, control: int, plans: Sequence[LaunchPlan], statuses: Sequence[Status]
) -> BackendFailure | None:
    """What the watchdog left at `control` of a launch that is over.

    Where nobody decodes, no finish tells of it.
    """
    finishes = [status.finish for plan, status in zip(plans, statuses, strict=True) if plan.max_new]
    if finishes and not any(finish in (Finish.RUNNING, Finish.ABORTED) for finish in finishes):
        return None
    stood_still, report = watchdog_report(context, control)
    return BackendFailure(report) if finishes or stood_still else None
