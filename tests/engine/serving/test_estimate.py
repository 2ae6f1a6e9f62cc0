from __future__ import annotations

from engine.serving.estimate import seconds_to_start
from engine.serving.messages import Heartbeat

IDLE = Heartbeat("idle", "m", "numpy", (), "idle")


def busy(for_ms: int) -> Heartbeat:
    return Heartbeat(f"busy {for_ms}", "m", "numpy", (), "generating", busy_ms=for_ms)


def test_without_a_worker_there_is_no_telling():
    assert seconds_to_start(1, [1000.0], []) is None


def test_an_idle_worker_starts_at_once():
    assert seconds_to_start(1, [], [IDLE]) == 0.0


def test_without_history_there_is_no_telling():
    assert seconds_to_start(1, [], [busy(500)]) is None


def test_the_next_waits_for_what_is_left_of_the_one_in_hand():
    assert seconds_to_start(1, [2000.0], [busy(500)]) == 1.5


def test_those_ahead_take_their_time_too():
    assert seconds_to_start(3, [2000.0], [busy(500)]) == 5.5


def test_workers_share_the_queue():
    assert seconds_to_start(3, [2000.0], [busy(500), busy(500)]) == (1.5 + 1.5 + 4.0) / 2


def test_a_request_that_takes_longer_than_usual_is_taken_to_end_any_moment():
    assert seconds_to_start(1, [1000.0], [busy(60_000)]) == 0.0


def test_one_slow_request_does_not_frighten_those_after_it():
    assert seconds_to_start(2, [1000.0, 1000.0, 90_000.0], [busy(1000)]) == 1.0
