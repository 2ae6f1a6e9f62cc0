"""Medians, intervals and percentiles: against scipy, and by what must hold for any samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.measuring.measurement import read_measurements
from engine.measuring.statistics import (
    LEAST_SAMPLES,
    RESAMPLES,
    change_interval,
    cluster_interval,
    cluster_quantiles,
    exchanged_share,
    median,
    median_interval,
    quantile,
    ratio_interval,
    samples_needed,
    student_quantile,
)
from tests.nightly import at_night

pytestmark = pytest.mark.slow

numbers = st.floats(-1e6, 1e6, allow_nan=False)
few = st.lists(numbers, min_size=1, max_size=30)


@given(few)
def test_median_splits_the_samples_in_half(samples: list[float]) -> None:
    middle = median(samples)
    assert sum(s < middle for s in samples) <= len(samples) / 2
    assert sum(s > middle for s in samples) <= len(samples) / 2


@settings(max_examples=25)
@given(few)
def test_interval_encloses_the_median_and_stays_within_the_samples(samples: list[float]) -> None:
    low, high = median_interval(samples)
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    assert min(samples) - slack <= low <= median(samples) + slack
    assert median(samples) - slack <= high <= max(samples) + slack


@settings(max_examples=25)
@given(few, st.floats(0.5, 100.0))
def test_interval_scales_with_its_samples(samples: list[float], factor: float) -> None:
    low, high = median_interval(samples)
    scaled = median_interval([s * factor for s in samples])
    assert scaled == pytest.approx((low * factor, high * factor), rel=1e-9, abs=1e-6)


def test_interval_agrees_with_scipys_bootstrap() -> None:
    samples = np.random.default_rng(5).normal(1000.0, 20.0, 41)
    expected = scipy.stats.bootstrap(
        (samples,), np.median, method="percentile", n_resamples=20_000, rng=np.random.default_rng(6)
    ).confidence_interval
    assert median_interval(samples.tolist()) == pytest.approx((expected.low, expected.high), rel=1e-3)


def test_interval_is_the_same_for_the_same_seed() -> None:
    samples = [3.0, 9.0, 4.0, 7.0, 5.5]
    assert median_interval(samples, seed=3) == median_interval(samples, seed=3)


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    draws = rng.lognormal(0.0, 0.5, (200, 15))  # the true median is 1
    covered = sum(low <= 1.0 <= high for low, high in (median_interval(d.tolist()) for d in draws))
    assert covered >= 0.93 * len(draws)


def test_interval_of_five_samples_is_as_sure_as_it_says() -> None:
    draws = np.random.default_rng(8).normal(100.0, 1.0, (300, LEAST_SAMPLES))
    covered = sum(low <= 100.0 <= high for low, high in (median_interval(d.tolist()) for d in draws))
    assert covered >= 0.9 * len(draws)


@pytest.mark.parametrize("freedom", [3, 4, 8, 30])
def test_student_s_quantile_is_that_of_scipy(freedom: int) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(scipy.stats.t(freedom).ppf(0.975), rel=0.01)


@pytest.mark.parametrize(("q", "needed"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_a_percentile_needs_enough_samples(q: float, needed: int) -> None:
    assert samples_needed(q) == needed
    assert quantile([1.0] * (needed - 1), q) is None
    assert quantile([1.0] * needed, q) == 1.0


def test_an_interval_needs_enough_repeats_and_enough_samples_in_all() -> None:
    assert cluster_interval([[1.0] * 100] * (LEAST_SAMPLES - 1), 0.5) is None
    assert cluster_interval([[1.0] * 7] * LEAST_SAMPLES, 0.9) is None
    assert cluster_interval([[1.0] * 8] * LEAST_SAMPLES, 0.9) == (1.0, 1.0)


@given(st.lists(numbers, min_size=72, max_size=200))
def test_p95_has_a_twentieth_of_the_samples_above_it(samples: list[float]) -> None:
    p95 = quantile(samples, 0.95)
    assert p95 is not None
    assert sum(s > p95 for s in samples) <= 0.05 * len(samples) + 1


@pytest.mark.parametrize("samples", [[], [float("nan")], [1.0, float("inf")]])
def test_samples_that_mean_nothing_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="sample"):
        median(samples)
    with pytest.raises(ValueError, match="sample"):
        median_interval(samples)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.1])
def test_a_quantile_outside_zero_to_one_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        samples_needed(q)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("sizes", [[1], [1] * 40, [127] * 5, [3, 50, 8, 120, 1]])
def test_cluster_quantiles_are_those_of_repeats_that_were_drawn_again(sizes: list[int], q: float) -> None:
    rng = np.random.default_rng(sum(sizes))
    repeats = [rng.lognormal(size=size) for size in sizes]
    drawn = cluster_quantiles(repeats, q, np.random.default_rng(1))
    picks = np.random.default_rng(2).integers(0, len(sizes), (RESAMPLES, len(sizes)))
    resampled = [np.quantile(np.concatenate([repeats[i] for i in pick]), q) for pick in picks[:2000]]
    # The statistic of Kolmogorov and Smirnov: 10,000 and 2,000 of one distribution stay below 0.05.
    assert scipy.stats.ks_2samp(drawn, resampled).statistic < 0.05


def change(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], q: float) -> bool:
    """Whether the interval of the change leaves out zero."""
    draws = [cluster_quantiles(s, q, np.random.default_rng(i)) for i, s in enumerate((before, after))]
    interval = change_interval(before, after, q, (draws[0], draws[1]))
    return interval is not None and not interval[0] <= 0.0 <= interval[1]


SPLITS = [half for half in combinations(range(10), 5) if 0 in half]
FIGURES = ("decode speed", "between tokens, p50", "between tokens, p99")


@pytest.mark.parametrize("splits", [SPLITS[::3], at_night(SPLITS)], ids=["a third", "all"])
@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("name", ["laneformer-2b-h200", "smollm2-135m-cpu"])
def test_halves_of_ten_repeats_differ_in_no_more_than_a_twentieth_of_all_splits(
    name: str, figure: str, splits: list[tuple[int, ...]]
) -> None:
    run = read_measurements(Path(f"benchmarks/{name}.json"))[0]
    speeds, gaps = [[s] for s in run.decode.samples], [list(r) for r in run.samples.itl_us]
    repeats, q = dict(zip(FIGURES, ((speeds, 0.5), (gaps, 0.5), (gaps, 0.99)), strict=True))[figure]
    differ = sum(
        change([repeats[i] for i in half], [repeats[i] for i in range(10) if i not in half], q)
        for half in splits
    )
    assert len(SPLITS) == 126
    assert differ <= 0.05 * len(splits)


@pytest.mark.parametrize("ties", [False, True])
def test_exchanged_share_is_the_p_of_scipy_s_permutations_of_ranks(ties: bool) -> None:
    rng = np.random.default_rng(9)
    values = np.concatenate([rng.normal(100, 2, 6), rng.normal(103, 3, 5)])
    ranks = scipy.stats.rankdata(values.round() if ties else values)

    def apart(a: np.ndarray, b: np.ndarray) -> float:
        return abs(float(a.sum() - 6 * ranks.mean()))

    theirs = scipy.stats.permutation_test(
        (ranks[:6], ranks[6:]), apart, alternative="greater", n_resamples=np.inf
    ).pvalue
    assert exchanged_share(ranks[:6].tolist(), ranks[6:].tolist()) == pytest.approx(theirs)


def test_exchanged_share_of_many_values_is_near_that_of_all_ways() -> None:
    rng = np.random.default_rng(10)
    first, second = rng.normal(100, 1, 40).tolist(), rng.normal(100.4, 1, 40).tolist()
    theirs = scipy.stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert 0.05 < theirs < 0.95
    assert exchanged_share(first, second) == pytest.approx(theirs, abs=0.03)


def test_five_repeats_that_all_differ_are_seldom_exchanged() -> None:
    assert exchanged_share([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]) == 2 / 252


def test_an_interval_reaches_zero_where_exchanged_repeats_differ_as_much() -> None:
    before, after = [[v] for v in (100.0, 100.0, 100.0, 104.0, 104.0)], [[v] for v in (104.0,) * 5]
    draws = (np.full(RESAMPLES, 100.0), np.full(RESAMPLES, 104.0))
    interval = change_interval(before, after, 0.5, draws)
    assert interval is not None
    assert interval == pytest.approx((0.0, 0.04))


@pytest.mark.parametrize("q", [0.5, 0.99])
@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 1.2)])
def test_a_clear_change_of_five_repeats_stays_clear(speeds: tuple[float, float], q: float) -> None:
    rng = np.random.default_rng(12)
    repeats = [list(speeds[i % 2] * rng.lognormal(0.0, 0.005, 127)) for i in range(5)]
    assert change(repeats, [[gap * 1.5 for gap in repeat] for repeat in repeats], q)


@pytest.mark.parametrize(
    "name", ["laneformer-2b-h200-x1", "laneformer-2b-h200-x2", "laneformer-2b-h200-x4", "llama-3.2-1b-h200"]
)
def test_a_true_difference_of_3_percent_is_found_in_nine_of_ten_draws(name: str) -> None:
    run = read_measurements(Path(f"benchmarks/{name}.json"))[0]
    n = run.settings.repeats
    for repeats in (run.samples.itl_us, [[speed] for speed in run.decode.samples]):
        rng = np.random.default_rng(3)
        found = 0
        for _ in range(20):
            before, after = ([repeats[i] for i in rng.integers(0, n, n)] for _ in range(2))
            found += change(before, [[value * 1.03 for value in repeat] for repeat in after], 0.5)
        assert found >= 18


def test_fewer_than_five_repeats_have_no_interval_of_a_change() -> None:
    draws = cluster_quantiles([[1.0], [2.0], [3.0], [4.0]], 0.5, np.random.default_rng(0))
    assert ratio_interval(draws, draws, (4, 10)) is None
    assert ratio_interval(draws, draws, (10, 4)) is None


def test_ratio_interval_of_many_samples_is_that_of_scipy_s_bootstrap() -> None:
    rng = np.random.default_rng(4)
    before, after = rng.normal(100, 2, 201), rng.normal(104, 3, 187)

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.median(b, axis=axis) / np.median(a, axis=axis) - 1)

    theirs = scipy.stats.bootstrap(
        (before, after), ratio, n_resamples=20_000, method="percentile", vectorized=True, rng=rng
    ).confidence_interval
    draws = [
        cluster_quantiles([[v] for v in s], 0.5, np.random.default_rng(i))
        for i, s in enumerate((before, after))
    ]
    ours = ratio_interval(draws[0], draws[1], (201, 187))
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.1 * (theirs.high - theirs.low))


@settings(max_examples=25)
@given(st.lists(st.floats(1e-3, 1e6), min_size=5, max_size=30))
def test_ratio_interval_of_the_same_draws_is_zero(samples: list[float]) -> None:
    draws = cluster_quantiles([[s] for s in samples], 0.5, np.random.default_rng(0))
    assert ratio_interval(draws, draws, (len(samples), len(samples))) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_ratio_of_what_is_not_positive_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ratio_interval(np.array([1.0]), np.array([bad]), (5, 5))


@pytest.mark.parametrize("bad", [[], [[]], [[np.nan]]])
def test_bootstrap_of_no_samples_is_refused(bad: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"samples|finite"):
        cluster_quantiles(bad, 0.5, np.random.default_rng(0))


def test_bootstrap_of_a_quantile_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"q is 1\.5"):
        cluster_quantiles([[1.0]], 1.5, np.random.default_rng(0))
