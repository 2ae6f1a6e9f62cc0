"""The collector against a bench inbox that answers as the test says, with a clock that the test moves."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable

import pytest

from dashboard.models import Measurement, Point, State, Sweep, SweepRun, Trace
from dashboard.sweeps import services
from dashboard.sweeps.collector import Collector
from engine.backends.base import TraceSpan
from engine.measuring.trace import chrome_trace, pack_trace
from engine.serving.errors import QueueFull, QueueUnavailable
from engine.serving.messages import (
    BenchRequest,
    Done,
    Failed,
    Frame,
    Measured,
    Progress,
    Request,
    Started,
)
from engine.serving.reading import StreamFrame
from engine.timings import Timings
from tests.dashboard import factories

pytestmark = pytest.mark.django_db

STARTED = Started("w1", "tiny-llama", "numpy", 8, 1.0)
CANCELLED = Done("cancelled", "", Timings(0, 0, 0, 0, 0, 0, 0))
Step = Frame | Exception | Callable[[], None] | None


class ScriptedBench:
    """Answers each read with the next step: a frame, an error to raise, something to do, or silence."""

    def __init__(self, *steps: Step) -> None:
        self.steps = deque(steps)
        self.submitted: list[BenchRequest] = []
        self.now = 0.0
        self.refuse = 0

    def submit(self, request: Request) -> int:
        if self.refuse:
            self.refuse -= 1
            raise QueueFull("the bench queue holds 256 requests")
        assert isinstance(request, BenchRequest)
        self.submitted.append(request)
        return 1

    def position(self, request_id: str) -> int | None:
        return 3

    def read(self, request_id: str, after: str) -> list[StreamFrame]:
        step = self.steps.popleft()
        if isinstance(step, Exception):
            raise step
        if callable(step):
            step()
            return []
        return [] if step is None else [StreamFrame(f"{len(self.steps)}-1", step)]


@pytest.fixture
def run() -> SweepRun:
    return factories.run_of(factories.sweep(context=[8]))


def measured(**kwargs: object) -> Measured:
    return Measured(factories.document(**kwargs))


def work(
    run: SweepRun, bench: ScriptedBench, on_change: Callable[[str], None] | None = None, looks: int = 99
) -> bool:
    """Looks at the run each second until it has ended. Whether it has."""
    found = Collector(bench, on_change, clock=lambda: bench.now)
    left = True
    for _ in range(looks):
        if not (left := found.collect(run.pk)):
            break
        bench.now += 1.0
    run.refresh_from_db()
    return not left


def test_point_is_asked_for_as_it_stands_in_the_matrix(run: SweepRun) -> None:
    bench = ScriptedBench(STARTED, measured())
    assert work(run, bench)
    request = bench.submitted[0]
    assert (request.model, request.backend, request.devices) == ("random:tiny-llama", "numpy", 1)
    assert (request.context, request.tokens, request.repeats) == (8, 8, 5)


def test_point_says_how_to_synchronise_again_when_it_is_retried() -> None:
    run = factories.run_of(factories.sweep(backend=["cpu"], sync=["barrier"], context=[8]))
    first, second = (ScriptedBench(Failed("backend_failed", "the device burst")) for _ in range(2))
    work(run, first)
    services.retry_failed(run=run)
    work(run, second)
    assert [bench.submitted[0].sync for bench in (first, second)] == ["barrier", "barrier"]


def test_point_says_how_many_streams_it_wants() -> None:
    run = factories.run_of(factories.sweep(streams=[4], context=[8]))
    bench = ScriptedBench(Failed("backend_failed", "the device burst"))
    work(run, bench)
    assert bench.submitted[0].streams == 4


def test_measurement_is_stored_with_its_point_and_worker(run: SweepRun) -> None:
    work(run, ScriptedBench(STARTED, measured(tok_s=123.0)))
    point = Point.objects.get(run=run)
    assert (point.state, point.worker, point.measurement.tok_s) == (State.FINISHED, "w1", 123.0)
    assert point.measurement.source == f"sweep run {run.pk}"


def test_sweep_that_wants_traces_asks_for_them_and_keeps_them() -> None:
    sweep = factories.sweep(context=[8])
    Sweep.objects.filter(pk=sweep.pk).update(trace=True)
    sweep.refresh_from_db()
    data = base64.b64encode(pack_trace(chrome_trace([TraceSpan("qkv", 0, 0, 1.0, 2.0)]))).decode()
    bench = ScriptedBench(STARTED, Measured(factories.document(), data))
    work(factories.run_of(sweep), bench)
    assert bench.submitted[0].trace
    assert Trace.objects.get().spans == 1


@pytest.mark.parametrize("data", ["not base64!", base64.b64encode(b"no trace").decode()])
def test_trace_that_cannot_be_kept_does_not_cost_the_measurement(run: SweepRun, data: str) -> None:
    work(run, ScriptedBench(STARTED, Measured(factories.document(), data)))
    assert run.state == State.FINISHED
    assert Measurement.objects.count() == 1 and not Trace.objects.exists()


def test_failure_of_a_point_is_stored_and_the_next_one_is_measured() -> None:
    run = factories.run_of(factories.sweep())
    work(run, ScriptedBench(Failed("backend_failed", "the device burst"), measured()))
    assert list(run.points.values_list("state", "error")) == [
        ("failed", "the device burst"),
        ("finished", ""),
    ]
    assert run.state == State.FAILED


def test_failure_without_a_reason_says_so(run: SweepRun) -> None:
    work(run, ScriptedBench(Failed("internal", "")))
    assert run.points.get().error == "The worker gave no reason (code internal)."


def test_measurement_that_breaks_the_schema_is_a_failure_that_names_the_field(run: SweepRun) -> None:
    document = factories.document()
    del document["verified"]
    work(run, ScriptedBench(Measured(document)))
    point = run.points.get()
    assert (point.state, point.error_code) == (State.FAILED, "bad_measurement")
    assert "verified" in point.error
    assert not Measurement.objects.exists()


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"devices": 2}, "with devices 1; the point asks for 2"),
        ({"sync": "barrier"}, "with sync 'mailbox'; the point asks for 'barrier'"),
        ({"streams": 4}, "with streams 1; the point asks for 4"),
    ],
)
def test_measurement_of_something_else_than_the_point_is_refused(
    run: SweepRun, asked: dict[str, object], complaint: str
) -> None:
    run.points.update(**asked)
    work(run, ScriptedBench(measured()))
    point = run.points.get()
    assert (point.state, point.error_code) == (State.FAILED, "bad_measurement")
    assert complaint in point.error
    assert not Measurement.objects.exists()


def test_point_that_a_worker_stopped_is_a_failure_to_retry(run: SweepRun) -> None:
    work(run, ScriptedBench(STARTED, CANCELLED))
    assert run.points.get().error_code == "cancelled"


def test_silent_inbox_is_asked_again_with_the_same_request(run: SweepRun) -> None:
    bench = ScriptedBench(*[None] * 25, measured())
    work(run, bench)
    assert len(bench.submitted) == 3
    assert len({request.id for request in bench.submitted}) == 1


def test_full_inbox_and_absent_redis_are_waited_out(run: SweepRun) -> None:
    bench = ScriptedBench(QueueUnavailable("Redis does not answer"), STARTED, measured())
    bench.refuse = 1
    assert work(run, bench)
    assert run.state == State.FINISHED


def test_progress_is_on_the_row_while_it_waits(run: SweepRun) -> None:
    labels: list[str] = []
    compared = Progress(3, 16, "layers", "comparing with the reference")
    steps = [None, STARTED, Progress(2, 5, "repeats"), None, compared, None, measured()]
    work(run, ScriptedBench(*steps), on_change=labels.append)
    assert labels[0] == "point 1 of 1: waiting for a worker, place 3"
    assert "point 1 of 1: measuring on w1" in labels
    assert "point 1 of 1: 2 of 5 repeats on w1" in labels
    assert "point 1 of 1: comparing with the reference: 3 of 16 layers on w1" in labels


def test_heartbeat_is_written_while_nothing_happens(run: SweepRun) -> None:
    beats = []
    bench = ScriptedBench(*[lambda: beats.append(SweepRun.objects.get(pk=run.pk).heartbeat)] * 9, measured())
    work(run, bench)
    assert len(set(beats)) >= 4  # every other second of nine


def test_cancelled_run_is_left_at_the_next_look(run: SweepRun) -> None:
    bench = ScriptedBench(STARTED, None, lambda: services.cancel(run=run), None, None)
    assert work(run, bench)
    assert run.state == State.CANCELLED
    assert len(bench.steps) == 2


def test_collector_that_stops_leaves_the_run_to_the_next_one(run: SweepRun) -> None:
    assert not work(run, ScriptedBench(STARTED), looks=1)
    assert run.state == State.RUNNING
    bench = ScriptedBench(measured())
    assert work(run, bench)
    assert run.state == State.FINISHED
    assert bench.submitted[0].id == run.points.get().request_id


def test_run_that_waits_for_its_device_is_left_alone(run: SweepRun) -> None:
    later = factories.run_of(factories.sweep("later", context=[8]))
    bench = ScriptedBench()
    assert not work(later, bench, looks=2)
    assert (later.state, bench.submitted) == (State.QUEUED, [])


def test_one_look_covers_every_run_on_devices_of_its_own() -> None:
    for name in ("numpy", "cuda"):
        factories.run_of(factories.sweep(name, backend=[name], context=[8]))
    Collector(bench := ScriptedBench(None, None), clock=lambda: 0.0).collect_all()
    assert {request.backend for request in bench.submitted} == {"numpy", "cuda"}
    assert set(SweepRun.objects.values_list("state", flat=True)) == {State.RUNNING}


def test_error_of_our_own_fails_the_run_with_its_name(run: SweepRun) -> None:
    assert work(run, ScriptedBench(ZeroDivisionError("by zero")))
    assert (run.state, run.error) == (State.FAILED, "ZeroDivisionError: by zero")
    assert run.points.get().state == State.FAILED
