"""When a worker has to be gone."""

from __future__ import annotations

import signal

import pytest

from engine.serving.stopping import Stopping


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time.monotonic says; the test sets it."""
    now = [100.0]
    monkeypatch.setattr("engine.serving.stopping.time.monotonic", lambda: now[0])
    return now


def test_nothing_has_to_leave_a_worker_that_goes_on(clock):
    stopping = Stopping(5.0)
    assert not stopping.has_begun
    assert not stopping.comes_before(float("inf"))


def test_what_ends_within_the_grace_period_may_end(clock):
    stopping = Stopping(5.0)
    stopping.begin()
    assert (stopping.comes_before(4.9), stopping.comes_before(5.1)) == (False, True)
    clock[0] += 3.0
    assert (stopping.comes_before(1.9), stopping.comes_before(2.1)) == (False, True)


def test_the_earlier_of_two_deadlines_holds(clock):
    stopping = Stopping(5.0)
    stopping.begin(at_once=True)
    clock[0] += 1.0
    stopping.begin()
    assert stopping.comes_before(0.0)


def test_a_second_signal_leaves_no_time_and_the_handlers_before_come_back(clock):
    before = signal.getsignal(signal.SIGTERM)
    stopping = Stopping(5.0)
    with stopping.at_signals():
        signal.raise_signal(signal.SIGTERM)
        assert (stopping.has_begun, stopping.comes_before(4.9)) == (True, False)
        signal.raise_signal(signal.SIGINT)
        clock[0] += 0.1
        assert stopping.comes_before(0.0)
    assert signal.getsignal(signal.SIGTERM) is before
