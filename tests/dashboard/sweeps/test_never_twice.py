"""Whatever happens to a sweep run, in whatever order, no point is measured twice and none is lost."""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis.extra.django
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.errors import DashboardError
from dashboard.models import DeviceHold, Measurement, Point, State, SweepRun
from dashboard.sweeps import devices, ownership, services
from tests.dashboard import factories

POINTS = 3
OWNERS = ("first", "second")
events = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["claim", "ask", "finish", "fail", "end", "release"]), st.sampled_from(OWNERS)
        ),
        st.tuples(st.sampled_from(["cancel", "retry", "reap", "start"]), st.just("")),
    ),
    max_size=40,
)


class World:
    """Two processes with owner tokens, one run, and an engine that answers each request id once."""

    def __init__(self) -> None:
        self.sweep = factories.sweep(context=list(range(1, POINTS + 1)))
        self.run = factories.run_of(self.sweep)
        self.held: dict[str, Point | None] = dict.fromkeys(OWNERS)
        self.measured: dict[str, dict[str, Any]] = {}

    def do(self, event: str, owner: str) -> None:
        getattr(self, event)(*([owner] if owner else []))

    def claim(self, owner: str) -> None:
        ownership.claim_run(run_id=self.run.pk, owner=owner)

    def ask(self, owner: str) -> None:
        self.held[owner] = ownership.claim_point(run_id=self.run.pk, owner=owner)

    def finish(self, owner: str) -> None:
        if point := self.held[owner]:
            answer = self._answer(point)
            ownership.finish_point(point=point, owner=owner, document=answer, worker="w")

    def _answer(self, point: Point) -> dict[str, Any]:
        """The inbox takes an id once, so a second process that asks gets the first one's answer."""
        key = point.request_id or ""
        day = len(self.measured)
        return self.measured.setdefault(key, factories.document(day=day, context=point.context))

    def fail(self, owner: str) -> None:
        if point := self.held[owner]:
            ownership.fail_point(point=point, owner=owner, code="x", message="it burst", worker="w")

    def end(self, owner: str) -> None:
        ownership.finish_run(run_id=self.run.pk, owner=owner)

    def release(self, owner: str) -> None:
        ownership.release_run(run_id=self.run.pk, owner=owner)

    def cancel(self) -> None:
        _allowed(services.cancel, run=self.run)

    def retry(self) -> None:
        _allowed(services.retry_failed, run=self.run)

    def start(self) -> None:
        _allowed(services.start_sweep, sweep=self.sweep, trigger="shell")

    def reap(self) -> None:
        """As when the process that works on it was killed."""
        SweepRun.objects.filter(state=State.RUNNING).update(
            heartbeat=self.run.created - 2 * ownership.STALE_AFTER
        )
        ownership.reap()


def _allowed(verb: Any, **arguments: Any) -> None:
    with contextlib.suppress(DashboardError):
        verb(**arguments)


class NeverTwice(hypothesis.extra.django.TestCase):
    @settings(max_examples=60, deadline=None)
    @given(events)
    def test_any_order_of_events_keeps_one_result_a_point(self, order: list[tuple[str, str]]) -> None:
        world = World()
        for event, owner in order:
            world.do(event, owner)
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
    assert all(run.pk in {r.pk for r in SweepRun.objects.filter(state=State.QUEUED)} for run in _startable())


def _startable() -> list[SweepRun]:
    return list(SweepRun.objects.filter(pk__in=devices.startable()))
