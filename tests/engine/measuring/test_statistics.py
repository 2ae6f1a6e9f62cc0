"""Medians, intervals and percentiles: against scipy, and by what must hold for any samples."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.measuring.statistics import (
    RESAMPLES,
    bootstrap_quantiles,
    median,
    median_interval,
    quantile,
    quantile_interval,
    ratio_interval,
    samples_needed,
)

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
    assert covered >= 0.88 * len(draws)


@pytest.mark.parametrize(("q", "needed"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_a_percentile_needs_enough_samples(q: float, needed: int) -> None:
    assert samples_needed(q) == needed
    assert quantile([1.0] * (needed - 1), q) is None
    assert quantile([1.0] * needed, q) == 1.0
    assert quantile_interval([1.0] * (needed - 1), q) is None
    assert quantile_interval([1.0] * needed, q) == (1.0, 1.0)


@given(st.lists(numbers, min_size=72, max_size=200))
def test_p95_has_a_twentieth_of_the_samples_above_it(samples: list[float]) -> None:
    p95 = quantile(samples, 0.95)
    assert p95 is not None
    assert sum(s > p95 for s in samples) <= 0.05 * len(samples) + 1


@given(st.integers(6, 3000), st.sampled_from([0.05, 0.5, 0.9, 0.95, 0.99]))
def test_quantile_interval_uses_the_ranks_that_scipys_binomial_gives(n: int, q: float) -> None:
    interval = quantile_interval(np.arange(n, dtype=float).tolist(), q)
    if n < samples_needed(q):
        assert interval is None
        return
    assert interval is not None
    low, high = (int(rank) for rank in interval)
    below = scipy.stats.binom(n, q)
    # P(quantile < sample of rank k) = P(at most k of n lie below it).
    assert below.cdf(low) <= 0.025 + 1e-9
    assert below.cdf(low + 1) > 0.025 - 1e-9
    assert below.cdf(high) >= 0.975 - 1e-9
    assert high == 0 or below.cdf(high - 1) < 0.975 + 1e-9


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


@pytest.mark.parametrize(("n", "q"), [(1, 0.5), (5, 0.5), (8, 0.5), (40, 0.5), (41, 0.9), (400, 0.99)])
def test_bootstrap_quantiles_are_distributed_as_those_of_resamples(n: int, q: float) -> None:
    samples = np.random.default_rng(n).lognormal(size=n)
    drawn = bootstrap_quantiles(samples, q, np.random.default_rng(1))
    picks = np.random.default_rng(2).choice(samples, size=(RESAMPLES, n))
    resampled = np.quantile(picks, q, axis=1)
    # The statistic of Kolmogorov and Smirnov: two samples of 10,000 from one distribution stay below 0.03.
    assert scipy.stats.ks_2samp(drawn, resampled).statistic < 0.03


def test_ratio_interval_is_that_of_scipy_s_bootstrap() -> None:
    rng = np.random.default_rng(4)
    before, after = rng.normal(100, 2, 9), rng.normal(104, 3, 7)

    def change(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.median(b, axis=axis) / np.median(a, axis=axis) - 1)

    theirs = scipy.stats.bootstrap(
        (before, after), change, n_resamples=20_000, method="percentile", vectorized=True, rng=rng
    ).confidence_interval
    width = theirs.high - theirs.low
    ours = ratio_interval(
        *(bootstrap_quantiles(s, 0.5, np.random.default_rng(i)) for i, s in enumerate((before, after)))
    )
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.06 * width)


@settings(max_examples=25)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30))
def test_ratio_interval_of_the_same_draws_is_zero(samples: list[float]) -> None:
    draws = bootstrap_quantiles(samples, 0.5, np.random.default_rng(0))
    assert ratio_interval(draws, draws) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_ratio_of_what_is_not_positive_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ratio_interval(np.array([1.0]), np.array([bad]))


@pytest.mark.parametrize("bad", [[], [np.nan]])
def test_bootstrap_of_no_samples_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"samples|finite"):
        bootstrap_quantiles(bad, 0.5, np.random.default_rng(0))


def test_bootstrap_of_a_quantile_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"q is 1\.5"):
        bootstrap_quantiles([1.0], 1.5, np.random.default_rng(0))
