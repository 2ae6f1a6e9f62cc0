"""What a handful of timings may claim: medians with their spread, percentiles only where n bounds them.

Nothing here assumes a distribution, but that repeats are independent of each other. The gaps between tokens
of one repeat are not: what disturbs one token disturbs the next, and a whole repeat may run at another pace.
So an interval resamples whole repeats (the cluster bootstrap), and its n is the number of repeats, however
many gaps they hold. With fewer than LEAST_SAMPLES there is no interval, and a percentile that the samples
cannot bound is None, never a guess.

Sources: Efron, "Bootstrap Methods" (1979), percentile method; Davison and Hinkley, "Bootstrap Methods and
their Application" (1997), section 3.8, for clusters; Hesterberg, "What Teachers Should Know about the
Bootstrap" (2015), section 5.3, for the tails that make up for few samples; Mann and Whitney, "On a Test of
Whether one of Two Random Variables is Stochastically Larger than the Other" (1947), for exchanged repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000
EXCHANGES = 2_000
"""Ways to deal the repeats of two runs anew, where there are more."""
CONFIDENCE = 0.95
LEAST_SAMPLES = 5
"""Repeats below which nothing is said of how sure a figure is."""


def median(samples: Sequence[float]) -> float:
    """The middle of `samples`. Raises ValueError if there are none or one is not a number."""
    return float(np.median(_check(samples)))


def median_interval(
    samples: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the median; the same samples and seed give the same interval.

    Fewer than LEAST_SAMPLES give their range, which claims no confidence: n beside it says so.
    Raises ValueError as `median` does.
    """
    values = _check(samples)
    if len(values) < LEAST_SAMPLES:
        return float(values.min()), float(values.max())
    rng = np.random.Generator(np.random.Philox(seed))
    return _interval(cluster_quantiles([[v] for v in values], 0.5, rng), len(values), confidence=confidence)


def cluster_interval(
    repeats: Sequence[Sequence[float]], q: float, *, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[float, float] | None:
    """Interval of the q-quantile of all samples of some repeats, which are drawn again as wholes.

    None with fewer than LEAST_SAMPLES repeats, or with fewer samples in all than `interval_needs`.
    Raises ValueError as `median` does.
    """
    filled = [repeat for repeat in repeats if len(repeat)]
    if len(filled) < LEAST_SAMPLES or sum(map(len, filled)) < interval_needs(q):
        return None
    rng = np.random.Generator(np.random.Philox(seed))
    return _interval(cluster_quantiles(filled, q, rng), len(filled), confidence=confidence)


def cluster_quantiles(repeats: Sequence[Sequence[float]], q: float, rng: np.random.Generator) -> Floats:
    """RESAMPLES draws of the q-quantile (linear interpolation) of repeats drawn again: [RESAMPLES].

    Which repeats a draw holds is a row of counts; how many of its samples are at most v is then a sum over
    repeats, so that a draw is found by bisection and never written out. Raises ValueError as `median`
    does, or unless 0 <= q <= 1.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q is {q}; a quantile lies between 0 and 1")
    ordered = [np.sort(_check(repeat)) for repeat in repeats]
    if not ordered:
        raise ValueError("there are no samples")
    values = np.sort(np.concatenate(ordered))
    at_most = np.stack([np.searchsorted(repeat, values, side="right") for repeat in ordered], axis=1)
    picks = rng.multinomial(len(ordered), np.full(len(ordered), 1.0 / len(ordered)), size=RESAMPLES)
    last = picks @ np.array([len(repeat) for repeat in ordered]) - 1
    below = np.floor(q * last).astype(np.intp)
    first = values[_ranks(picks, at_most, below)]
    second = values[_ranks(picks, at_most, np.minimum(below + 1, last))]
    return np.asarray(first + (q * last - below) * (second - first))


def _ranks(picks: NDArray[np.int64], at_most: NDArray[np.intp], rank: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each draw the least place in the ordered values up to which more than `rank` of its samples lie."""
    low, high = np.zeros(len(picks), np.intp), np.full(len(picks), len(at_most) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        enough = (picks * at_most[middle]).sum(axis=1) > rank
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low


def ratio_interval(
    before: Floats, after: Floats, repeats: tuple[int, int], *, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Interval of after / before - 1, from the `cluster_quantiles` of each, which rest on so many `repeats`.

    None if either rests on fewer than LEAST_SAMPLES. The two were drawn independently unless they are the
    same samples. Raises ValueError if a draw is not above 0: it has no ratio.
    """
    if min(before.min(), after.min()) <= 0.0:
        raise ValueError("a relative change needs samples above 0")
    if min(repeats) < LEAST_SAMPLES:
        return None
    return _interval(after / before - 1.0, min(repeats), sum(repeats) - 2, confidence=confidence)


def change_interval(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    q: float,
    draws: tuple[Floats, Floats],
) -> tuple[float, float] | None:
    """Interval of a q-quantile's relative change between two runs of some repeats; None as `ratio_interval`.

    `draws` are the `cluster_quantiles` of both. Where their interval leaves out zero, but repeats dealt anew
    to the two runs differ as much in more than 1 - CONFIDENCE of all ways, it is stretched to zero. A
    bootstrap of few repeats at two speeds knows its spread only roughly; with this, halves of one run differ
    no more often than that, whatever its noise.
    """
    interval = ratio_interval(*draws, (len(before), len(after)))
    if interval is None or interval[0] <= 0.0 <= interval[1]:
        return interval
    own = [[float(np.quantile(repeat, q)) for repeat in run] for run in (before, after)]
    if exchanged_share(own[0], own[1]) <= 1.0 - CONFIDENCE:
        return interval
    return min(interval[0], 0.0), max(interval[1], 0.0)


def exchanged_share(first: Sequence[float], second: Sequence[float]) -> float:
    """In what share of the ways to deal these values to two such groups their ranks are as far apart.

    That is the two-sided p of Mann and Whitney's test, by all ways, or by EXCHANGES at random and this one.
    Raises ValueError as `median` does.
    """
    values = _check([*first, *second])
    ordered = np.sort(values)
    ranks = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    sums = _dealings(len(first), len(second)) @ (ranks - ranks.mean())
    return float(np.mean(np.abs(sums) >= abs(sums[0]) - 1e-9))


def _dealings(first: int, second: int) -> Floats:
    """Rows [ways, first + second] of 1 for who is dealt to the first group; the first row is how they are."""
    n = first + second
    if math.comb(n, first) <= EXCHANGES:
        chosen = np.array(list(combinations(range(n), first)))
    else:
        rng = np.random.Generator(np.random.Philox(0))
        orders = rng.permuted(np.tile(np.arange(n), (EXCHANGES, 1)), axis=1)
        chosen = np.concatenate([np.arange(first)[None], orders[:, :first]])
    dealt = np.zeros((len(chosen), n))
    np.put_along_axis(dealt, chosen, 1.0, axis=1)
    return dealt


def _interval(
    draws: Floats, n: int, freedom: int | None = None, *, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Percentiles of bootstrap draws, as far out as few samples need it.

    Draws of n samples spread by sqrt((n - 1) / n) too little, and their own spread is known as well as
    `freedom` (n - 1) degrees allow, which is Student's t: so the tail is that of a normal variable at
    sqrt(n / (n - 1)) t. With many samples it is the plain (1 - confidence) / 2.
    """
    t = student_quantile((1.0 + confidence) / 2.0, n - 1 if freedom is None else freedom)
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * t)
    low, high = np.quantile(draws, (tail, 1.0 - tail))
    return float(low), float(high)


def student_quantile(p: float, freedom: int) -> float:
    """The p-quantile of Student's t, within 1 % from 3 degrees of freedom on for 0.9 <= p <= 0.99.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    z = NormalDist().inv_cdf(p)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / float(freedom) ** i for i, term in enumerate(terms))


def samples_needed(q: float, *, confidence: float = CONFIDENCE) -> int:
    """How many samples it takes until the q-quantile can lie inside a two-sided interval.

    The extreme sample must fall beyond the quantile with probability 1 - (1 - confidence) / 2:
    36 for p90, 72 for p95, 368 for p99, 3,688 for p99.9 at 95 %. Raises ValueError unless 0 < q < 1.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"q is {q}; a quantile lies between 0 and 1")
    tail = (1.0 - confidence) / 2.0
    return max(1, math.ceil(math.log(tail) / math.log(max(q, 1.0 - q))))


def interval_needs(q: float) -> int:
    """Samples in all from which a quantile has an interval: a median, as few as its repeats may be."""
    return LEAST_SAMPLES if q == 0.5 else samples_needed(q)


def quantile(samples: Sequence[float], q: float) -> float | None:
    """The q-quantile (linear interpolation), or None where `samples_needed(q)` asks for more samples."""
    needed = samples_needed(q)
    if len(samples) < needed:
        return None
    return float(np.quantile(_check(samples), q))


def _check(samples: Sequence[float]) -> Floats:
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("there are no samples")
    if not np.isfinite(values).all():
        raise ValueError("a sample is not a finite number")
    return values
