"""Several requests in one launch of a GPU, by a kernel compiled for 2, 4 or 8.

Of several GPUs that run a model together each has a launch of its own (engine.backends.cuda.row_launches).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

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
from engine.backends.cuda.launch import DeviceContext, LaunchPlan, params_of, watchdog_report
from engine.backends.cuda.profile import LaunchProfile, ProfileBuffer
from engine.backends.cuda.resources import LaunchResources
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
    """The rows' memory on one GPU: each has a mailbox and exchanges of its own, whoever sits there."""

    def __init__(self, context: DeviceContext, rows: int) -> None:
        device, self.sizes = context.device, SeatSizes.of(context.layout)
        device.activate()
        self.rows = rows
        self.mail = device.allocate(rows * self.sizes.mail, zero=True)
        self.candidates = device.allocate(rows * self.sizes.candidates, zero=True)
        self.tables = device.allocate(rows * self.sizes.tables)
        self.control = device.allocate(_FILTERS_AT + rows * self.sizes.filters, zero=True)
        """What every launch finds cleared begins here: the Control, stop flags and filters, side by side."""
        self.stop_flags = self.control + _STOP_FLAGS_AT
        self.filters = self.control + _FILTERS_AT
        self.serials = [1] * rows

    def place(self, params: Params, seat: int, team: Sequence[Seats]) -> None:
        """Has a request use the seat's memory; `team` has that of all GPUs, by rank."""
        for name, address in self._addresses(seat).items():
            setattr(params, name, address)
        params.stop_flag = self.stop_flags + FLAG_BYTES * seat
        params.serial = self.serials[seat] & 0xFFFFFFFF
        for peer, other in zip(params.peers, team, strict=False):
            for name, address in other._addresses(seat).items():
                setattr(peer, name, address)

    def _addresses(self, seat: int) -> dict[str, int]:
        """Of what other GPUs write too."""
        return {
            "mail": self.mail + seat * self.sizes.mail,
            "candidates": self.candidates + seat * self.sizes.candidates,
            "filters": self.filters + seat * self.sizes.filters,
            "control": self.control,
        }

    def clear(self, device: Device, requests: int, stream: Any) -> None:
        """What a launch of so many requests must find cleared."""
        device.fill(self.control, _FILTERS_AT + requests * self.sizes.filters, 0, stream)

    def empty(self, context: DeviceContext) -> None:
        """After an abort they hold words of an unfinished pass. No GPU may be running."""
        device = context.device
        device.activate()
        device.fill(self.mail, self.rows * self.sizes.mail)
        device.fill(self.candidates, self.rows * self.sizes.candidates)
        device.synchronise()
        self.serials = [1] * self.rows


class SeveralLaunch:
    """What a launch of several rows is on one GPU.

    Made ready by the constructor; `start` makes it run. In between no GPU of a team is busy, as with one
    request (launch.CudaLaunch). `team` has the rows' memory on all GPUs.
    """

    def __init__(
        self,
        context: DeviceContext,
        team: Sequence[Seats],
        layout: Layout,
        plans: Sequence[LaunchPlan],
    ) -> None:
        self._context, self._team, self._layout, self._plans = context, team, layout, plans
        self._seats = team[context.rank]
        self._resources = LaunchResources(context.pool)
        self.failure: BackendFailure | None = None
        """Once it has ended without doing its work."""
        self.stuck = False
        """True if it was its own wait that took too long, not another GPU's."""
        self.profile: LaunchProfile | None = None
        """Once it has ended, of a backend that was opened with the option `profile`."""
        self.usable = True
        """False once the GPU has failed and the driver refuses everything on it."""
        self._ended, self._aborted = True, False
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
        self._profiled, self._profile_address = None, 0
        if self._layout.tuning.profile:
            self._profiled = ProfileBuffer(self._layout, (0, 0))
            self._profile_address = self._resources.memory(self._profiled.size)
            device.fill(self._profile_address, self._profiled.size, 0, self._stream)
        requests = [self._params(seat, plan) for seat, plan in enumerate(self._plans)]
        host = HostSide(device, self._resources, self._stream, requests, self._plans, flags=MOST_ROWS)
        self._views, self._flags = host.views, host.flags
        reader = self._reader()
        first, end = self._plans[reader].layers or (0, self._layout.config.layers)
        self._together = Together(tables=self._seats.tables, reader=reader, first_layer=first, end_layer=end)
        self._together.requests[: len(requests)] = requests
        for i in range(len(requests), MOST_ROWS):  # nobody's: they decode nothing
            self._together.requests[i] = requests[0]
            self._together.requests[i].max_new = 0
        self._watch = Watch(device, self._stream, self._context.spin_budget_s)
        device.synchronise()

    def _params(self, seat: int, plan: LaunchPlan) -> Params:
        params = params_of(self._context, plan)
        params.profile = self._profile_address
        self._seats.place(params, seat, self._team)
        return params

    def _reader(self) -> int:
        """The last request of which a piece of its prompt is read; 0 if there is none."""
        readers = [i for i, plan in enumerate(self._plans) if plan.first < plan.prefill_end]
        return readers[-1] if readers else 0

    def start(self, kernel: Any) -> None:
        self._context.device.activate()
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
        self._context.device.activate()
        if self._watch.has_ended(self._shown()):
            self._finish()
        elif self._watch.loss:
            self._ended, self.usable = True, False
            self.failure = DeviceLost(self._watch.loss)
        return self._ended

    def _shown(self) -> object:
        """Only the first GPU of a team shows what it does; others must end once they were told to give up."""
        is_patient = self._context.rank != 0 and not self._aborted
        return object() if is_patient else tuple(view.shown for view in self._views)

    def _finish(self) -> None:
        self._ended = True
        statuses = [view.status for view in self._views]
        for seat, status in enumerate(statuses):
            self._seats.serials[seat] += status.passes
        self.failure, self.stuck = breakdown_of(self._context, self._seats.control, self._plans, statuses)
        if self._profiled and self.failure is None:
            size = self._profiled.size // 8
            words = self._context.device.download(self._profile_address, (size,), np.uint64)
            self.profile = self._profiled.of_several(words, len(self._plans))

    def take(self, part: int) -> Sequence[Token]:
        return self._views[part].take()

    def finish(self, part: int) -> Finish:
        return Finish(self._views[part].status.finish)

    def prefilled(self, part: int) -> tuple[int, int]:
        return self._views[part].prefilled, self._views[part].prefill_ns

    def stop(self, part: int | None = None) -> None:
        """The first GPU's is heard by all."""
        first, count = (0, MOST_ROWS) if part is None else (part, 1)
        self._raise_flags(self._seats.stop_flags + FLAG_BYTES * first, FLAG_BYTES * count)

    def abort(self) -> None:
        """Makes every wait on this GPU give up: another one, whose words it would wait for, is lost."""
        if self._ended or self._aborted:
            return
        self._aborted = True
        self._watch.begin()
        self._raise_flags(self._seats.control + Control.aborted.offset, 4)

    def _raise_flags(self, address: int, size: int) -> None:
        """A copy engine does this; a kernel would find no room beside the one that runs."""
        if not self._ended:
            device = self._context.device
            device.activate()
            device.call("cuMemcpyHtoDAsync", address, self._flags.ctypes.data, size, self._side)

    def close(self) -> None:
        """Waits for its end, and gives back what it held."""
        while not self.ended:
            time.sleep(1e-3)
        if self.usable:
            self._resources.release()


def breakdown_of(
    context: DeviceContext, control: int, plans: Sequence[LaunchPlan], statuses: Sequence[Status]
) -> tuple[BackendFailure | None, bool]:
    """What the watchdog left at `control` of a launch that is over, and whether a wait on this GPU took too
    long.

    Where nobody decodes, no finish tells of it.
    """
    finishes = [status.finish for plan, status in zip(plans, statuses, strict=True) if plan.max_new]
    if finishes and not any(finish in (Finish.RUNNING, Finish.ABORTED) for finish in finishes):
        return None, False
    stood_still, report = watchdog_report(context, control)
    return (BackendFailure(report) if finishes or stood_still else None), stood_still
