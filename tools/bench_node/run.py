"""One run on a node: kernels compiled, models opened, checked, then timed, each point written at once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from engine.backends import open_backend
from engine.backends.base import Backend, TraceSpan
from engine.backends.cuda.driver import reachable_devices
from engine.backends.cuda.monokernel import MONOKERNEL, kernel_headers
from engine.backends.cuda.precompile import Source, precompile
from engine.errors import EngineError
from engine.measuring.bench import run_point
from engine.measuring.point import Point
from engine.models.config import ModelConfig
from engine.progress import ignore_progress
from engine.sampling import SamplingParams
from tools.bench_exchange.command import REPEATS, SIZES
from tools.bench_exchange.measure import EXCHANGE_KERNEL, ExchangeTime, exchange_header, measure
from tools.bench_exchange.nccl import beside_nccl
from tools.bench_node.correctness import Check, against_fewest, against_reference, passed
from tools.bench_node.plan import QUICK, Order, Setup
from tools.bench_node.results import Results

Say = Callable[[str], None]
_NCCL_LEAST_S = 20.0
"""Of seconds that are left, below which its processes would not even find each other."""


class Skipped(EngineError):
    """Why a part of the run was not begun."""


class NodeRun:
    """Does what an order asks. What fails is told, kept in `not_run`, and does not stop the rest."""

    def __init__(self, order: Order, results: Results, say: Say) -> None:
        self.order, self.results = order, results
        self.checks: list[Check] = []
        self.exchanges: list[ExchangeTime] = []
        self.seconds: dict[str, float] = {}
        self.not_run: dict[str, str] = {}
        self._say = say
        self._begun = time.monotonic()
        self._opened: dict[Setup, Backend] = {}

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def _in_time(self, needed_s: float = 0.0) -> None:
        """Raises Skipped if the limit leaves less than `needed_s` seconds."""
        if self.elapsed_s + needed_s > self.order.limit_s:
            raise Skipped(f"the limit of {self.order.limit_s:g} s was reached before it")

    def run(self) -> None:
        """Everything, what says most first. Raises EngineError if not even the kernels compile."""
        whole, sliced, *delays = self.order.kinds
        try:
            with self._stage("compile"):
                self._compile()
            with self._stage("check small models"):
                self._check(against_reference(self.order, self._in_time))
            for kind in (whole, sliced):
                self._measure_kind(kind)
            with self._stage("exchange"):
                self._exchange()
            for kind in delays:
                self._measure_kind(kind)
            with self._stage("longer contexts"):
                self._measure(self.order.further_points())
            with self._stage("NCCL"):
                self._nccl()
        finally:
            for backend in self._opened.values():
                backend.close()

    def _measure_kind(self, kind: ModelConfig) -> None:
        """One model on every number of devices: opened, checked, timed."""
        with self._stage(f"open {kind.name}"):
            opened = self._open(self.order.setups_of(kind))
        with self._stage(f"check {kind.name}"):
            self._check(against_fewest(opened, self._in_time))
        with self._stage(f"measure {kind.name}"):
            self._measure(self.order.first_points(kind))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begun = self.elapsed_s
        try:
            yield
        finally:
            self.seconds[name] = self.elapsed_s - begun
            self._say(f"{name}: {self.seconds[name]:.1f} s")
            self.results.write_summary(
                self.order.most, self.checks, self.exchanges, self.seconds, self.not_run
            )

    def _compile(self) -> None:
        if self.order.backend == "cuda":
            count = precompile(kernel_sources(self.order), ignore_progress)
            self._say(f"{count} kernels are ready")

    def _open(self, setups: Sequence[Setup]) -> Mapping[Setup, Backend]:
        for setup in setups:
            with self._caught(setup.name):
                self._in_time()
                self._opened[setup] = self._backend(setup)
        return {setup: self._opened[setup] for setup in setups if setup in self._opened}

    def _backend(self, setup: Setup) -> Backend:
        order = self.order
        opened = open_backend(order.backend, setup.model, devices=setup.devices, options=order.options)
        return cast("Backend", FromCache(opened)) if order.backend == "cpu" else opened

    def _check(self, checks: Iterator[Check]) -> None:
        with self._caught("checks"):
            for check in checks:
                self.checks.append(check)
                self._say(f"{check.what} x{check.devices}: {check.found}{'' if check.right else '  WRONG'}")

    def _measure(self, points: Iterator[tuple[Setup, Point]]) -> None:
        for setup, point in points:
            drawn = "" if point.sampling == SamplingParams() else ", drawn"
            name = f"{setup.name}, context {point.context}{drawn}"
            with self._caught(name):
                if setup not in self._opened:
                    raise Skipped(self.not_run[setup.name])
                self._in_time()
                if not passed(self.checks, self.order, setup):
                    raise Skipped("its tokens were not found right, so its speed would say nothing")
                self._point(setup, point, name)

    def _point(self, setup: Setup, point: Point, name: str) -> None:
        spans: list[TraceSpan] = []
        found = run_point(
            self._opened[setup], setup.model, point, on_trace=spans.extend, commit=self.order.commit
        )
        self.results.add(found)
        if spans:
            self.results.add_trace(found, spans)
        self._say(f"{name}: {found.decode.median:,.1f} tok/s ({self.elapsed_s:.0f} s)")

    def _exchange(self) -> None:
        teams = [count for count in self.order.devices if count > 1]
        if not teams:
            return
        if self.order.backend != "cuda":
            self.not_run["exchange"] = "virtual devices share one memory: there is no link to time"
            return
        with self._caught("exchange"):
            for count in teams:
                self._in_time()
                self.exchanges += measure(count, SIZES, REPEATS)

    def _nccl(self) -> None:
        """Last, as it needs processes of its own that take long to find each other."""
        if self.exchanges and self.order.scale is not QUICK:
            with self._caught("NCCL"):
                self._in_time(_NCCL_LEAST_S)
                left_s = self.order.limit_s - self.elapsed_s
                self.exchanges = beside_nccl(self.exchanges, REPEATS, limit_s=left_s)

    @contextmanager
    def _caught(self, what: str) -> Iterator[None]:
        """A part that fails is a row with its error; the others go on."""
        try:
            yield
        except EngineError as error:
            self.not_run[what] = str(error)
        except Exception as error:
            traceback.print_exc()
            self.not_run[what] = f"{type(error).__name__}: {error}"
        if what in self.not_run:
            self._say(f"{what}: {self.not_run[what]}")


class FromCache:
    """The backend of a dry run: its model lies in caches, so what memory reads says nothing about it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def measure_bandwidth(self) -> tuple[float, ...]:
        """Unknown, for every device."""
        return (0.0,) * len(self._backend.topology.devices)


def kernel_sources(order: Order) -> list[Source]:
    """Every kernel that a run on GPUs needs, so that none is compiled while something waits for it."""
    device = reachable_devices(1)[0]
    device.activate()
    sms, free = device.attribute("MULTIPROCESSOR_COUNT"), device.free_bytes()
    sources: list[Source] = [("pack.cu", "")]
    for setup in order.setups():
        headers = kernel_headers(setup.model, setup.devices, sms, order.options, free=free)
        sources += [(MONOKERNEL, header) for header in headers]
    for setup in order.small_setups():
        headers = kernel_headers(setup.model, setup.devices, sms, order.options, profile=False, free=free)
        sources += [(MONOKERNEL, header) for header in headers[:1]]
    sources += [(EXCHANGE_KERNEL, exchange_header(count)) for count in order.devices if count > 1]
    return sources
