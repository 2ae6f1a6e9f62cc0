"""How long sweeps take, by what points like theirs took before, and what that says of the queue."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.models import Point, State, SweepRun
from dashboard.sweeps import lifecycle
from dashboard.sweeps.estimates import Estimate, estimate, estimate_remaining
from dashboard.sweeps.matrix import expand
from dashboard.sweeps.queue import place_of, queues
from tests.dashboard import factories
from tests.dashboard.sweeps.test_services import work

pytestmark = pytest.mark.django_db


def ran(name: str, seconds: float, **matrix: Any) -> SweepRun:
    """A finished run each of whose points took `seconds`."""
    run = factories.run_of(factories.sweep(name, **matrix))
    work(run)
    now = timezone.now()
    Point.objects.filter(run=run).update(started=now - timedelta(seconds=seconds), ended=now)
    return run


def left(run: SweepRun, now: datetime | None = None) -> Estimate:
    run.refresh_from_db()
    return estimate_remaining([run], now or timezone.now())[run.pk]


def test_points_that_ran_before_tell_how_long_a_sweep_takes() -> None:
    ran("a", 10)
    ran("b", 20)
    assert estimate(expand(factories.MATRIX)) == pytest.approx((30, 2, 2))


def test_points_that_never_ran_are_counted_as_unknown() -> None:
    ran("a", 10, context=[8])
    assert estimate(expand(factories.MATRIX)) == pytest.approx((10, 1, 2))


def test_another_sampling_is_another_kind_of_point() -> None:
    ran("a", 10)
    specs = expand({**factories.MATRIX, "sampling": [{"temperature": 0.8}]})
    assert estimate(specs).known == 0


def test_run_that_waits_has_all_its_points_before_it() -> None:
    ran("a", 10)
    assert left(factories.run_of(factories.sweep("b"))) == pytest.approx((20, 2, 2))


def test_time_spent_on_a_point_is_taken_off_but_never_more_than_it_takes() -> None:
    ran("a", 10)
    run = factories.run_of(factories.sweep("b"))
    lifecycle.begin_run(run_id=run.pk)
    point = lifecycle.next_point(run_id=run.pk)
    assert point is not None and point.started is not None
    assert left(run, point.started + timedelta(seconds=4)).seconds == pytest.approx(16)
    assert left(run, point.started + timedelta(seconds=99)).seconds == pytest.approx(10)


def test_unknown_point_is_expected_to_take_what_the_runs_own_took() -> None:
    run = factories.run_of(factories.sweep(context=[8, 16, 24]))
    lifecycle.begin_run(run_id=run.pk)
    assert left(run).known == 0
    point = lifecycle.next_point(run_id=run.pk)
    assert point is not None
    lifecycle.finish_point(point=point, document=factories.document(), worker="w")
    now = timezone.now()
    Point.objects.filter(pk=point.pk).update(started=now - timedelta(seconds=7), ended=now)
    assert left(run) == pytest.approx((14, 2, 2))


def test_run_that_has_ended_has_nothing_left() -> None:
    assert left(ran("a", 10)) == (0, 0, 0)


def test_queue_adds_up_the_times_of_those_before() -> None:
    ran("old", 10)
    first, second, third = (factories.run_of(factories.sweep(name)) for name in "abc")
    lifecycle.begin_run(run_id=first.pk)
    (cpu,) = queues(timezone.now())
    assert cpu.left is not None and cpu.left.seconds == pytest.approx(20, abs=1)
    assert [ahead.wait_s for ahead in cpu.waiting] == pytest.approx([20, 40], abs=1)
    place = place_of(third, [cpu])
    assert place is not None and (place.place, place.behind) == (2, first)
    assert place_of(first, [cpu]) is None
    assert second.state == State.QUEUED


def test_queue_knows_no_time_where_one_point_has_nothing_to_go_by() -> None:
    first = factories.run_of(factories.sweep("a"))
    factories.run_of(factories.sweep("b"))
    lifecycle.begin_run(run_id=first.pk)
    (cpu,) = queues(timezone.now())
    assert cpu.waiting[0].wait_s is None


def test_page_shows_the_queue_and_a_waiting_run_says_for_whom_it_waits(client: Client) -> None:
    first, second = (factories.run_of(factories.sweep(name)) for name in "ab")
    lifecycle.begin_run(run_id=first.pk)
    page = client.get("/dashboard/sweeps/").content.decode()
    assert "<h2>Queue</h2>" in page and f"after {first}" in page
    run_page = client.get(second.get_absolute_url()).content.decode()
    assert f'waiting for <a href="{first.get_absolute_url()}">' in run_page and "place 1" in run_page


def test_number_of_queries_does_not_grow_with_the_queue(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    ran("old", 10)
    for index in range(12):
        factories.run_of(factories.sweep(f"s{index}"))
    with django_assert_max_num_queries(8):
        client.get("/dashboard/sweeps/")
