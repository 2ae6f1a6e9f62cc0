"""Steps of a series: against the optimal partition that an exhaustive search finds, and by what must hold."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.measuring.change_points import LEAST, LEVEL, PENALTY, noise, steps

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


def optimal_cuts(series: Floats, penalty: float) -> list[int]:
    """Minimises squared error + penalty x cuts over every partition into levels of LEVEL points or more."""
    n = len(series)
    sums, squares = np.r_[0, np.cumsum(series)], np.r_[0, np.cumsum(series**2)]

    def error(a: int, b: int) -> float:
        return float(squares[b] - squares[a] - (sums[b] - sums[a]) ** 2 / (b - a))

    best, last = [0.0] + [math.inf] * n, [0] * (n + 1)
    for end in range(LEVEL, n + 1):
        for start in [0, *range(LEVEL, end - LEVEL + 1)]:
            cost = best[start] + error(start, end) + penalty * (start > 0)
            if cost < best[end]:
                best[end], last[end] = cost, start
    cuts, end = [], n
    while last[end]:
        cuts.append(end := last[end])
    return cuts[::-1]


def test_steps_are_those_of_the_optimal_partition() -> None:
    alike = 0
    for seed in range(60):
        lengths = [int(n) for n in np.random.default_rng(seed).integers(8, 40, 1 + seed % 5)]
        series, _ = staircase(seed, lengths)
        best = optimal_cuts(series, PENALTY * math.log(len(series)) * noise(series) ** 2)
        found = [step.at for step in steps(series)]
        alike += len(found) == len(best) and all(abs(a - b) <= 1 for a, b in zip(found, best, strict=True))
    # The rest are cuts that the search would have made for a change below LEAST.
    assert alike >= 57


@settings(max_examples=40)
@given(seeds, st.lists(st.integers(10, 60), min_size=2, max_size=6))
def test_every_clear_step_is_found_where_it_is(seed: int, lengths: list[int]) -> None:
    series, cuts = staircase(seed, lengths, sigma=0.5, least=10.0)
    assert [step.at for step in steps(series)] == cuts


def test_noise_alone_has_no_steps() -> None:
    rng = np.random.default_rng(1)
    false = sum(bool(steps(100 + rng.normal(0, 3.0, 200))) for _ in range(400))
    assert false / 400 < 0.02


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
    assert steps([]) == steps([1.0] * (2 * LEVEL - 1)) == []


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_ratio_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        steps([1.0] * 9 + [bad])
