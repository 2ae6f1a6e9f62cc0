"""A pause after a failure begins when told to and ends by itself."""

from __future__ import annotations

from dashboard.pause import Pause


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_before_any_failure_one_may_ask() -> None:
    assert Pause(10.0, Clock()).over


def test_after_a_failure_nobody_asks_until_the_time_is_up() -> None:
    clock = Clock()
    pause = Pause(10.0, clock)
    pause.begin()
    clock.now = 9.9
    assert not pause.over
    clock.now = 10.0
    assert pause.over


def test_a_failure_during_a_pause_begins_it_again() -> None:
    clock = Clock()
    pause = Pause(10.0, clock)
    pause.begin()
    clock.now = 5.0
    pause.begin()
    clock.now = 14.0
    assert not pause.over
