"""Scales place values, and ticks stand at round ones."""

from __future__ import annotations

from dashboard.charts.scale import LinearScale, LogScale, Tick, apart


def test_linear_scale_runs_from_start_to_end_either_way() -> None:
    x, y = LinearScale(10, 20, 0, 100), LinearScale(10, 20, 100, 0)
    assert [x(10), x(15), x(20)] == [0, 50, 100]
    assert [y(10), y(15), y(20)] == [100, 50, 0]


def test_linear_ticks_stand_at_round_values_inside() -> None:
    assert [tick.label for tick in LinearScale(0.93, 1.31, 0, 100).ticks()] == ["1.0", "1.1", "1.2", "1.3"]


def test_log_scale_gives_each_decade_the_same_room() -> None:
    x = LogScale(1, 100, 0, 100)
    assert [x(1), x(10), x(100)] == [0, 50, 100]


def test_log_ticks_leave_out_2_and_5_over_many_decades() -> None:
    assert [tick.label for tick in LogScale(1, 100, 0, 1).ticks()] == ["1", "2", "5", "10", "20", "50", "100"]
    assert [tick.label for tick in LogScale(1, 10_000, 0, 1).ticks()] == ["1", "10", "100", "1,000", "10,000"]


def test_labels_too_close_to_the_one_before_are_left_out() -> None:
    ticks = [Tick(0, "a"), Tick(30, "b"), Tick(50, "c")]
    assert [tick.label for tick in apart(ticks, 44)] == ["a", "c"]
