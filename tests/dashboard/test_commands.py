"""`manage.py sweep`, on a real Redis; the engine is real where it says so."""

from __future__ import annotations

import io
import re

import pytest
from django.core.management import CommandError, call_command

from dashboard.models import State, SweepRun
from dashboard.sweeps import bench_client
from tests.dashboard import factories
from tests.dashboard.stack import Stack


@pytest.mark.slow
@pytest.mark.usefixtures("short_bench")
def test_now_measures_in_this_process_and_prints_a_table(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.measuring.bench.WARM_UP_S", 1.0)  # long enough to be told of
    factories.sweep()
    out = io.StringIO()
    with stack.engine():
        call_command("sweep", "test-sweep", "--now", stdout=out)
    text = out.getvalue()
    assert "2 points, 5 repeats each" in text
    assert re.search(r"point [12] of 2: (measuring|[\d,]+ of [\d,]+ tokens) on test-worker", text)
    assert text.count("finished  ") == 2 and "ITL p99" in text
    assert SweepRun.objects.get().state == State.FINISHED


@pytest.mark.slow
@pytest.mark.usefixtures("short_bench")
def test_without_now_a_celery_worker_does_the_work(stack: Stack) -> None:
    factories.sweep(context=[8])
    out = io.StringIO()
    with stack.engine(), stack.celery():
        call_command("sweep", "test-sweep", stdout=out)
    assert "finished after" in out.getvalue()


def test_no_wait_starts_and_returns(stack: Stack) -> None:
    out = io.StringIO()
    call_command("sweep", "cpu-quick", "--no-wait", stdout=out)
    assert SweepRun.objects.get().state == State.QUEUED
    assert "Sweep run 1 (cpu-quick): 2 points" in out.getvalue()


def test_unknown_name_is_answered_with_the_known_ones(stack: Stack) -> None:
    with pytest.raises(CommandError, match="there are cpu-context, cpu-quick, gpu-shapes"):
        call_command("sweep", "nothing")


def test_running_sweep_is_not_started_again(stack: Stack) -> None:
    factories.run_of(factories.sweep())
    with pytest.raises(CommandError, match="already queued"):
        call_command("sweep", "test-sweep")


def test_failed_run_ends_the_command_with_an_error(stack: Stack) -> None:
    factories.sweep(model=["no-such-model"], context=[8])
    out = io.StringIO()
    with stack.engine(), pytest.raises(CommandError, match="ended as failed"):
        call_command("sweep", "test-sweep", "--now", stdout=out)
    assert "no-such-model" in out.getvalue()


def test_interrupted_now_cancels_the_run(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    factories.sweep()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_client.Client, "read", interrupt)
    with pytest.raises(CommandError, match="cancelled"):
        call_command("sweep", "test-sweep", "--now", stdout=io.StringIO())
    assert SweepRun.objects.get().state == State.CANCELLED
