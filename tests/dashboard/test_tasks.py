"""Sweeps through a real Celery worker on a real Redis; the engine is a hand that writes its frames."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from dashboard import tasks
from dashboard.errors import SweepBusy
from dashboard.models import Measurement, Point, State, Sweep, SweepRun, Trigger
from dashboard.sweeps import definitions, services
from engine.serving.client import Client
from engine.serving.messages import BENCH, Measured, Started, cancel_key, encode_frame, out_key
from tests.dashboard import factories
from tests.dashboard.stack import Stack
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


class HandEngine:
    """Answers what lies in the bench inbox when told to."""

    def __init__(self, url: str) -> None:
        self.redis = redis.Redis.from_url(url, decode_responses=True)

    def requests(self) -> list[dict[str, Any]]:
        entries: Any = self.redis.xrange(BENCH)
        return [json.loads(fields["json"]) for _, fields in entries]

    def start(self, request_id: str) -> None:
        frame = encode_frame(Started("hand", "tiny-llama", "numpy", 8, 0.0))
        self.redis.xadd(out_key(request_id), frame, id="1-0")  # type: ignore[arg-type]

    def answer(self, request_id: str, **kwargs: Any) -> None:
        frame = encode_frame(Measured(factories.document(**kwargs)))
        self.redis.xadd(out_key(request_id), frame, id="9-0")  # type: ignore[arg-type]


@pytest.fixture
def hand(stack: Stack) -> Iterator[HandEngine]:
    engine = HandEngine(stack.redis_url)
    yield engine
    engine.redis.close()


def start(sweep: Sweep) -> SweepRun:
    return services.start_sweep(sweep=sweep, trigger=Trigger.SHELL)


def state_of(run: SweepRun) -> str:
    return SweepRun.objects.values_list("state", flat=True).get(pk=run.pk)


def test_sweep_runs_in_a_celery_worker_point_after_point(stack: Stack, hand: HandEngine) -> None:
    with stack.celery():
        run = start(factories.sweep())
        for count in (1, 2):
            wait_until(lambda n=count: len(hand.requests()) == n)
            hand.answer(hand.requests()[-1]["id"], day=count)
        wait_until(lambda: state_of(run) == State.FINISHED)
    assert Measurement.objects.filter(point__run=run).count() == 2


def test_celery_worker_that_stops_leaves_its_run_to_the_next_without_asking_twice(
    stack: Stack, hand: HandEngine
) -> None:
    with stack.celery():
        run = start(factories.sweep(context=[8]))
        wait_until(lambda: len(hand.requests()) == 1)
        hand.start(hand.requests()[0]["id"])
    assert state_of(run) == State.RUNNING
    with stack.celery():
        hand.answer(hand.requests()[0]["id"])
        wait_until(lambda: state_of(run) == State.FINISHED)
    assert len(hand.requests()) == 1
    assert Measurement.objects.count() == 1


def test_run_whose_celery_worker_was_killed_goes_on_without_measuring_again(
    stack: Stack, hand: HandEngine
) -> None:
    with stack.celery() as worker:
        run = start(factories.sweep(context=[8]))
        wait_until(lambda: len(hand.requests()) == 1)
        worker.kill()
        worker.wait(10)
    assert state_of(run) == State.RUNNING
    hand.answer(hand.requests()[0]["id"])  # the engine finished what the dead process had asked for
    with stack.celery():
        wait_until(lambda: state_of(run) == State.FINISHED)
    assert len(hand.requests()) == 1
    assert Measurement.objects.count() == 1


def test_two_celery_workers_measure_each_point_once(stack: Stack, hand: HandEngine) -> None:
    with stack.celery(), stack.celery():
        run = start(factories.sweep())
        for count in (1, 2):
            wait_until(lambda n=count: len(hand.requests()) == n)
            hand.answer(hand.requests()[-1]["id"], day=count)
        wait_until(lambda: state_of(run) == State.FINISHED)
    assert len(hand.requests()) == 2
    assert Measurement.objects.filter(point__run=run).count() == 2


def test_cancelled_sweep_leaves_the_inbox(stack: Stack, hand: HandEngine) -> None:
    with stack.celery():
        run = start(factories.sweep())
        wait_until(lambda: len(hand.requests()) == 1)
        request_id = hand.requests()[0]["id"]
        hand.start(request_id)
        services.cancel(run=run)
        assert hand.redis.exists(cancel_key(request_id))
    assert state_of(run) == State.CANCELLED
    assert len(hand.requests()) == 1


def test_schedule_starts_the_sweep_and_skips_while_it_runs(stack: Stack) -> None:
    sweep = factories.sweep()
    definitions.set_schedule(sweep=sweep, crontab="* * * * *")
    tasks.start_scheduled(sweep.pk)
    Sweep.objects.update(slot=None)
    tasks.start_scheduled(sweep.pk)
    run = SweepRun.objects.get()
    assert run.trigger == Trigger.SCHEDULE


def test_schedule_of_a_deleted_sweep_does_nothing(stack: Stack) -> None:
    tasks.start_scheduled(12345)
    assert not SweepRun.objects.exists()


def test_two_starts_at_once_make_one_run(stack: Stack) -> None:
    sweep = factories.sweep()
    gate = threading.Barrier(4)
    refused: list[Exception] = []

    def press() -> None:
        from django.db import connection

        gate.wait()
        try:
            start(sweep)
        except SweepBusy as busy:
            refused.append(busy)
        finally:
            connection.close()

    threads = [threading.Thread(target=press) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (SweepRun.objects.count(), len(refused)) == (1, 3)
    assert Point.objects.count() == 2


@pytest.mark.slow
@pytest.mark.usefixtures("short_bench")
def test_sweep_on_a_real_engine_fills_the_dashboard(stack: Stack) -> None:
    with stack.engine(), stack.celery():
        run = start(factories.sweep(sampling=[{}, {"temperature": 0.8, "seed": 1}]))
        wait_until(lambda: state_of(run) not in (State.QUEUED, State.RUNNING), 120)
    run.refresh_from_db()
    assert (run.state, run.done) == (State.FINISHED, 4), list(run.points.values_list("error", flat=True))
    rows = Measurement.objects.filter(point__run=run).select_related("configuration", "point")
    for row in rows:
        assert row.verified
        assert row.point is not None and row.point.worker == "test-worker"
        assert set(row.document["phases_us"]) >= {"qkv", "attention", "head"}
        assert row.configuration.context == row.point.context
    assert {row.configuration.sampling for row in rows} == {"greedy", "t=0.8"}
    with Client(stack.redis_url) as client:
        assert client.depth()["bench"] == 0
