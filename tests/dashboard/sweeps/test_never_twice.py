"""Whatever happens to a sweep run, in whatever order, no point is measured twice and none is lost."""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis.extra.django
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.errors import DashboardError
from dashboard.models import DeviceHold, Measurement, Point, State, SweepRun
from dashboard.sweeps import devices, lifecycle, services
from tests.dashboard import factories

POINTS = 3
COLLECTORS = ("first", "second")
events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["begin", "ask", "finish", "fail", "end"]), st.sampled_from(COLLECTORS)),
        st.tuples(st.sampled_from(["cancel", "retry", "start"]), st.just("")),
    ),
    max_size=40,
)


class World:
    """Two collectors that may stop at any point, one run, and an engine that answers each request id once."""

    def __init__(self) -> None:
        self.sweep = factories.sweep(context=list(range(1, POINTS + 1)))
        self.run = factories.run_of(self.sweep)
        self.held: dict[str, Point | None] = dict.fromkeys(COLLECTORS)
        self.measured: dict[str, dict[str, Any]] = {}

    def do(self, event: str, collector: str) -> None:
        getattr(self, event)(*([collector] if collector else []))

    def begin(self, _collector: str) -> None:
        lifecycle.begin_run(run_id=self.run.pk)

    def ask(self, collector: str) -> None:
        self.held[collector] = lifecycle.next_point(run_id=self.run.pk)

    def finish(self, collector: str) -> None:
        if point := self.held[collector]:
            answer = self._answer(point)
            lifecycle.finish_point(point=point, document=answer, worker="w")

    def _answer(self, point: Point) -> dict[str, Any]:
        """The inbox takes an id once, so a second process that asks gets the first one's answer."""
        key = point.request_id or ""
        day = len(self.measured)
        return self.measured.setdefault(key, factories.document(day=day, context=point.context))

    def fail(self, collector: str) -> None:
        if point := self.held[collector]:
            lifecycle.fail_point(point=point, code="x", message="it burst", worker="w")

    def end(self, _collector: str) -> None:
        lifecycle.finish_run(run_id=self.run.pk)

    def cancel(self) -> None:
        _allowed(services.cancel, run=self.run)

    def retry(self) -> None:
        _allowed(services.retry_failed, run=self.run)

    def start(self) -> None:
        _allowed(services.start_sweep, sweep=self.sweep, trigger="shell")


def _allowed(verb: Any, **arguments: Any) -> None:
    with contextlib.suppress(DashboardError):
        verb(**arguments)


class NeverTwice(hypothesis.extra.django.TestCase):
    @settings(max_examples=60, deadline=None)
    @given(events)
    def test_any_order_of_events_keeps_one_result_a_point(self, order: list[tuple[str, str]]) -> None:
        world = World()
        for event, collector in order:
            world.do(event, collector)
            check(world)


def check(world: World) -> None:
    run = SweepRun.objects.get(pk=world.run.pk)
    points = list(Point.objects.filter(run=run))
    current = [point for point in points if point.current]
    assert sorted(point.index for point in current) == list(range(POINTS)), "each point once, none lost"
    finished = [point.index for point in points if point.state == State.FINISHED]
    assert len(finished) == len(set(finished)), "a point that was measured is not measured again"
    assert Measurement.objects.filter(point__run=run).count() == len(finished)
    requests = [point.request_id for point in points if point.request_id]
    assert len(requests) == len(set(requests))
    assert sum(point.state == State.RUNNING for point in points) <= 1, "one point at a time"
    assert run.done == sum(point.state in (State.FINISHED, State.FAILED) for point in current)
    holds = set(DeviceHold.objects.values_list("device", "run_id"))
    running = SweepRun.objects.filter(state=State.RUNNING)
    assert holds == {(device, one.pk) for one in running for device in one.devices}
    waiting = list(SweepRun.objects.filter(state=State.QUEUED))
    assert running or not waiting or any(devices.blocker_of(one) is None for one in waiting), (
        "somebody may begin"
    )
