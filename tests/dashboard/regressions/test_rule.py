"""The rule that says when a speed is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.models import Label
from dashboard.regressions.rule import NEEDED, has_recovered, judge
from engine.measuring.change_points import LEAST

FLAT = [100.0] * 8
directions = st.sampled_from([1, -1])


def label(*newest: float, better: int = 1, threshold: float | None = None) -> Label:
    return judge([*FLAT, *newest], better, threshold).label


def noisy(seed: int, n: int, sigma: float = 0.005) -> np.ndarray:
    return 100 * (1 + np.random.default_rng(seed).normal(0, sigma, n))


def test_two_points_in_a_row_below_the_level_are_a_regression() -> None:
    assert label(90, 91) is Label.REGRESSION


def test_one_slow_point_is_only_suspicious() -> None:
    assert label(100, 90) is Label.SUSPICIOUS


def test_slow_point_that_was_followed_by_a_good_one_is_forgotten() -> None:
    assert label(80, 100) is Label.STEADY


def test_change_within_the_threshold_is_steady() -> None:
    assert label(99.2, 99.2) is Label.STEADY
    assert label(96, 96, threshold=0.05) is Label.STEADY
    assert label(96, 96, threshold=0.02) is Label.REGRESSION


def test_less_is_better_for_a_latency() -> None:
    assert label(110, 110, better=-1) is Label.REGRESSION
    assert label(90, 90, better=-1) is Label.IMPROVEMENT


@given(st.lists(st.floats(1, 1e6), max_size=NEEDED - 1), directions)
def test_too_few_points_are_insufficient_data_and_say_how_many(points: list[float], better: int) -> None:
    verdict = judge(points, better)
    assert (verdict.label, verdict.n, verdict.baseline) == (Label.INSUFFICIENT, len(points), None)


def test_a_fall_of_4_5_percent_at_a_noise_of_a_tenth_is_a_regression() -> None:
    values = np.r_[noisy(1, 12, 0.001), noisy(2, 12, 0.001) * 0.955].tolist()
    verdict = judge(values, 1)
    assert (verdict.label, verdict.first_bad) == (Label.REGRESSION, 12)
    assert judge(values[:14], 1).label is Label.REGRESSION, "two points are enough"


def test_a_creep_of_one_percent_a_run_is_a_regression_from_where_it_began() -> None:
    values = (noisy(3, 36) * np.r_[np.ones(12), 0.99 ** np.arange(1, 25)]).tolist()
    assert any(judge(values[: 12 + n], 1).label is Label.REGRESSION for n in range(1, 9))
    verdict = judge(values, 1)
    assert verdict.label is Label.REGRESSION
    assert verdict.baseline == pytest.approx(100, rel=0.01)
    assert verdict.first_bad is not None and 11 <= verdict.first_bad <= 16


def test_the_baseline_is_the_best_level_and_not_the_last_one() -> None:
    values = [100.0] * 10 + [110.0] * 10 + [104.0] * 10
    verdict = judge(values, 1)
    assert (verdict.label, verdict.baseline, verdict.first_bad) == (Label.REGRESSION, 110.0, 20)


def test_a_loss_too_slow_for_any_step_is_found_against_the_best() -> None:
    values = (noisy(4, 300, 0.002) * 0.9998 ** np.arange(300)).tolist()
    assert judge(values, 1).label is Label.REGRESSION


def test_noisy_history_widens_the_threshold() -> None:
    rough = [100.0, 80, 120, 90, 110, 85, 115, 95]
    assert judge(FLAT, 1).threshold == LEAST
    assert judge([*rough, 75, 75], 1).label is not Label.REGRESSION


def test_one_outlier_does_not_move_the_baseline() -> None:
    assert judge([*FLAT, 5000.0, 90, 90], 1).baseline == 100


def test_two_bad_runs_that_were_mended_are_no_regression_any_more() -> None:
    assert label(85, 85.5, 100, 99.9) in (Label.IMPROVEMENT, Label.STEADY)


@given(st.floats(1, 1e6), st.integers(NEEDED, 20), directions)
def test_a_constant_series_is_steady(value: float, n: int, better: int) -> None:
    verdict = judge([value] * n, better)
    assert verdict.label is Label.STEADY
    assert verdict.change == pytest.approx(0)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=20), directions)
def test_the_unit_does_not_matter(points: list[float], better: int) -> None:
    assert judge([p * 2 for p in points], better).label is judge(points, better).label


def test_recovery_needs_the_level_back_within_the_threshold() -> None:
    bad = [*FLAT, 80.0, 80.0, 80.0]
    assert has_recovered([*bad, 98.0, 99.0], 100, 0.05, 1)
    assert not has_recovered([*bad, 98.0], 100, 0.05, 1), "one good run is no level"
    assert not has_recovered([*bad, 90.0, 90.0], 100, 0.05, 1)
