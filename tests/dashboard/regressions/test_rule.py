"""The rule that says when a speed is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.models import Label
from dashboard.regressions.rule import IN_A_ROW, LEAST_THRESHOLD, NEEDED, judge, recovered, spread_threshold

FLAT = [100.0] * 8
values = st.lists(st.floats(1, 1e6), min_size=1, max_size=20)
directions = st.sampled_from([1, -1])


def label(*newest: float, better: int = 1, threshold: float | None = None) -> Label:
    return judge([*FLAT, *newest], better, threshold).label


def test_two_points_in_a_row_beyond_the_threshold_are_a_regression() -> None:
    assert label(90, 91) is Label.REGRESSION


def test_one_slow_point_is_only_suspicious() -> None:
    assert label(100, 90) is Label.SUSPICIOUS


def test_slow_point_that_was_followed_by_a_good_one_is_forgotten() -> None:
    assert label(80, 100) is Label.STEADY


def test_change_within_the_threshold_is_steady() -> None:
    assert label(96, 96) is Label.STEADY
    assert label(96, 96, threshold=0.02) is Label.REGRESSION


def test_less_is_better_for_a_latency() -> None:
    assert label(110, 110, better=-1) is Label.REGRESSION
    assert label(90, 90, better=-1) is Label.IMPROVEMENT


@given(st.lists(st.floats(1, 1e6), max_size=NEEDED - 1), directions)
def test_too_few_points_are_insufficient_data_and_say_how_many(points: list[float], better: int) -> None:
    verdict = judge(points, better)
    assert (verdict.label, verdict.n, verdict.baseline) == (Label.INSUFFICIENT, len(points), None)


def test_noisy_history_widens_the_threshold() -> None:
    noisy = [100.0, 80, 120, 90, 110, 85, 115, 95]
    assert spread_threshold(FLAT) == LEAST_THRESHOLD
    assert spread_threshold(noisy) > 0.4
    assert judge([*noisy, 75, 75], 1).label is Label.STEADY


def test_one_outlier_does_not_move_the_baseline() -> None:
    assert judge([*FLAT, 5000.0, 90, 90], 1).baseline == 100


@given(st.floats(1, 1e6), st.integers(NEEDED, 20), directions)
def test_a_constant_series_is_steady(value: float, n: int, better: int) -> None:
    verdict = judge([value] * n, better)
    assert verdict.label is Label.STEADY
    assert verdict.change == pytest.approx(0)


@given(values, directions, st.floats(0.5, 4))
def test_the_unit_does_not_matter(points: list[float], better: int, factor: float) -> None:
    threshold = 0.1731  # a fixed one: at the edge of a computed one, rounding decides
    assert judge(points, better, threshold).n == judge([p * factor for p in points], better, threshold).n
    doubled = judge([p * 2 for p in points], better, threshold)
    assert doubled.label is judge(points, better, threshold).label


@given(values)
def test_what_is_a_regression_one_way_is_none_the_other_way(points: list[float]) -> None:
    more, less = judge(points, 1, 0.05).label, judge(points, -1, 0.05).label
    assert (more is Label.REGRESSION) == (less is Label.IMPROVEMENT)


def test_recovery_needs_two_points_back_within_the_threshold() -> None:
    assert recovered([80, 98, 99], 100, 0.05, 1)
    assert not recovered([98, 80], 100, 0.05, 1)
    assert not recovered([99], 100, 0.05, 1), f"{IN_A_ROW} points are needed"
