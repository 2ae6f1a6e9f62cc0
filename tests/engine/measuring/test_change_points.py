"""Steps and drifts of a series: known ones are found where they are, noise has none."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.measuring.change_points import FIRST_BASE, LEAST, LEVEL, drift, noise, steps
from tests.nightly import at_night

Floats = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)


def staircase(
    seed: int, lengths: list[int], *, sigma: float = 1.0, least: float = 6.0
) -> tuple[Floats, list[int]]:
    """Levels around 100, at least `least` apart, with Gaussian noise; and where they change."""
    rng = np.random.default_rng(seed)
    level, levels = 100.0, []
    for _ in lengths:
        levels.append(level)
        level += rng.choice([-1, 1]) * rng.uniform(least, 2 * least)
    series = np.repeat(levels, lengths) + rng.normal(0, sigma, sum(lengths))
    return series, [int(c) for c in np.cumsum(lengths)[:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("histories", [100, at_night(1000)])
def test_every_clear_step_is_found_where_it_is(histories: int) -> None:
    rng, extra, levels = np.random.default_rng(1), 0, 0
    for seed in range(histories):
        lengths = [int(points) for points in rng.integers(10, 61, rng.integers(2, 7))]
        series, cuts = staircase(seed, lengths, sigma=0.5, least=10.0)
        found = steps(series)
        assert all(any(abs(step.at - cut) <= 1 for step in found) for cut in cuts)
        extra, levels = extra + len(found) - len(cuts), levels + len(lengths)
    assert extra <= 0.005 * levels  # noise has some of its own, as the next test says


@pytest.mark.slow
@pytest.mark.parametrize("histories", [100, at_night(400)])
def test_noise_alone_has_no_steps(histories: int) -> None:
    rng = np.random.default_rng(1)
    false = sum(bool(steps(100 + rng.normal(0, 3.0, 200))) for _ in range(histories))
    assert false / histories < 0.03  # 0.05 a year of nights


def test_one_bad_run_is_no_level() -> None:
    series, _ = staircase(2, [60])
    series[30], series[-1] = 40.0, 40.0
    assert steps(series) == []


def test_a_step_keeps_its_place_beside_an_outlier() -> None:
    series, cuts = staircase(3, [30, 30], least=10.0)
    series[12], series[45] = 20.0, 300.0
    assert [step.at for step in steps(series)] == cuts


def test_a_change_below_the_least_is_no_step() -> None:
    assert steps([100.0] * 20 + [100.0 * (1 + LEAST * 0.9)] * 20) == []
    assert len(steps([100.0] * 20 + [100.0 * (1 + LEAST * 1.1)] * 20)) == 1


def test_a_step_says_both_levels_and_its_relative_change() -> None:
    (step,) = steps([100.0] * 10 + [80.0] * 10)
    assert (step.at, step.before, step.after, step.change) == (10, 100.0, 80.0, pytest.approx(-0.2))


@settings(max_examples=40)
@given(seeds, st.floats(1e-3, 1e6))
def test_the_unit_of_the_series_does_not_matter(seed: int, scale: float) -> None:
    series, _ = staircase(seed, [20, 15, 25])
    assert [s.at for s in steps(series * scale)] == [s.at for s in steps(series)]


@given(st.lists(st.floats(1e-3, 1e6), max_size=60))
def test_levels_have_enough_points_and_changes_are_large_enough(series: list[float]) -> None:
    found = steps(series)
    edges = [0, *(step.at for step in found), len(series)]
    assert not found or min(b - a for a, b in pairwise(edges)) >= LEVEL
    assert all(abs(math.log(step.after / step.before)) >= math.log1p(LEAST) for step in found)


def test_too_few_points_have_no_steps() -> None:
    assert steps([]) == steps([1.0] * FIRST_BASE + [2.0] * (LEVEL - 1)) == []
    assert len(steps([1.0] * FIRST_BASE + [2.0] * LEVEL)) == 1


def test_two_bad_runs_among_good_ones_are_a_level_of_their_own_and_none_between() -> None:
    series = [248.0, 249, 248.5, 248, 249, 248, 248.5, 249, 211, 210.5, 248.5, 248]
    assert [(s.at, s.before, s.after) for s in steps(series)] == [
        (8, 248.5, 210.75),
        (10, 210.75, 248.25),
    ]


def test_what_was_found_stays_found_when_more_points_come() -> None:
    series, _ = staircase(4, [30, 12, 25], sigma=0.5, least=5.0)
    for end in range(len(series)):
        seen = steps(series[:end])
        whole = [s for s in steps(series) if s.told <= end]
        assert [(s.at, s.told) for s in seen] == [(s.at, s.told) for s in whole]


def test_a_creep_of_one_percent_a_run_is_found_within_eight() -> None:
    found = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        series = 100 * (1 + rng.normal(0, 0.005, 38))
        series[30:] *= 0.99 ** np.arange(1, 9)
        found += any(s.at >= 28 and s.after < s.before for s in steps(series))
    assert found >= 49


def test_noise_of_two_speeds_is_noise() -> None:
    rng = np.random.default_rng(5)
    fast = 100 * (1 + rng.normal(0, 0.005, 200))
    series = np.where(rng.random(200) < 0.3, 0.97, 1.0) * fast
    assert noise(series.tolist()) > 1.0
    assert noise(fast.tolist()) == pytest.approx(0.5, rel=0.3)


@pytest.mark.parametrize("better", [True, False])
def test_a_loss_too_slow_for_a_step_is_a_drift_from_the_best(better: bool) -> None:
    per_run = 0.9998 if better else 1.0002
    series = [100.0 + (i % 3) * 0.3 for i in range(30)]
    series += [series[i % 30] * per_run**i for i in range(1, 200)]
    found = drift(series, more_is_better=better)
    assert found is not None
    assert found.since < 60
    assert (found.newest < found.best) is better
    assert drift(series, more_is_better=not better) is None


def test_a_series_without_a_loss_has_no_drift() -> None:
    rng = np.random.default_rng(6)
    assert drift((100 + rng.normal(0, 0.5, 400)).tolist(), more_is_better=True) is None
    assert drift([100.0, 50.0] * 9, more_is_better=True) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_ratio_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        steps([1.0] * 9 + [bad])
