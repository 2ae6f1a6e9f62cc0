"""What a handful of timings may claim: medians with their spread, percentiles only where n bounds them.

Nothing here assumes a distribution. Speeds of repeats are few, so their median carries a bootstrap
interval; latencies are many, so their percentiles rest on order statistics, and a percentile that the
samples cannot bound is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95


def median(samples: Sequence[float]) -> float:
    """The middle of `samples`. Raises ValueError if there are none or one is not a number."""
    return float(np.median(_checked(samples)))


def median_interval(
    samples: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[float, float]:
    """Percentile-bootstrap interval of the median; the same samples and seed give the same interval.

    One sample bounds itself: the interval is then a point, which `n` beside it explains.
    Raises ValueError as `median` does. Source: Efron, "Bootstrap Methods" (1979), percentile method.
    """
    values = _checked(samples)
    rng = np.random.Generator(np.random.Philox(seed))
    picks = rng.integers(0, len(values), size=(RESAMPLES, len(values)))
    medians = np.median(values[picks], axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(medians, (tail, 1.0 - tail))
    return float(low), float(high)


def bootstrap_quantiles(samples: Sequence[float], q: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """RESAMPLES draws of the q-quantile (linear interpolation) of samples drawn again: [RESAMPLES].

    The k-th smallest of n values drawn with replacement is the sample at place floor(n U), where U is the
    k-th smallest of n uniform numbers, and that is Beta(k, n + 1 - k). So a draw costs two random numbers
    however many samples there are, and has exactly the distribution of resampling. Raises ValueError as
    `median` does, or unless 0 <= q <= 1.
    Source: Devroye, "Non-Uniform Random Variate Generation" (1986), section V.3.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q is {q}; a quantile lies between 0 and 1")
    ordered = np.sort(_checked(samples))
    n = len(ordered)
    below = math.floor(q * (n - 1))
    low = rng.beta(below + 1, n - below, RESAMPLES)
    first = ordered[np.minimum((n * low).astype(np.intp), n - 1)]
    share = q * (n - 1) - below
    if share == 0.0:
        return first
    high = low + (1.0 - low) * rng.beta(1, n - below - 1, RESAMPLES)
    second = ordered[np.minimum((n * high).astype(np.intp), n - 1)]
    return np.asarray(first + share * (second - first))


def ratio_interval(
    before: NDArray[np.float64], after: NDArray[np.float64], *, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Percentile-bootstrap interval of after / before - 1, from the `bootstrap_quantiles` of each.

    The two were drawn independently unless they are the same samples. Raises ValueError if a draw is not
    above 0: it has no ratio.
    """
    if min(before.min(), after.min()) <= 0.0:
        raise ValueError("a relative change needs samples above 0")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(after / before - 1.0, (tail, 1.0 - tail))
    return float(low), float(high)


def samples_needed(q: float, *, confidence: float = CONFIDENCE) -> int:
    """How many samples it takes until the q-quantile can lie inside a two-sided interval.

    The extreme sample must fall beyond the quantile with probability 1 - (1 - confidence) / 2:
    36 for p90, 72 for p95, 368 for p99, 3,688 for p99.9 at 95 %. Raises ValueError unless 0 < q < 1.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"q is {q}; a quantile lies between 0 and 1")
    tail = (1.0 - confidence) / 2.0
    return max(1, math.ceil(math.log(tail) / math.log(max(q, 1.0 - q))))


def quantile(samples: Sequence[float], q: float) -> float | None:
    """The q-quantile (linear interpolation), or None where `samples_needed(q)` asks for more samples."""
    needed = samples_needed(q)
    if len(samples) < needed:
        return None
    return float(np.quantile(_checked(samples), q))


def quantile_interval(
    samples: Sequence[float], q: float, *, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Distribution-free interval of the q-quantile from two order statistics; None if n is too small.

    The number of samples below the true quantile is binomial(n, q), so the samples at that
    distribution's two tails enclose the quantile with at least the asked confidence.
    Source: David and Nagaraja, "Order Statistics", section 7.1.
    """
    if len(samples) < samples_needed(q, confidence=confidence):
        return None
    ordered = np.sort(_checked(samples))
    n, tail = len(ordered), (1.0 - confidence) / 2.0
    below = _binomial_cdf(n, q)
    # low is the last rank that is beyond the quantile in at most `tail` of cases, high the first above it.
    low = int(np.searchsorted(below, tail, side="right")) - 1
    high = int(np.searchsorted(below, 1.0 - tail, side="left"))
    return float(ordered[max(0, low)]), float(ordered[min(n - 1, high)])


def _binomial_cdf(n: int, q: float) -> NDArray[np.float64]:
    """P(at most k of n samples lie below the q-quantile), for k = 0 .. n: [n + 1]."""
    steps = np.log(np.arange(n, 0, -1.0)) - np.log(np.arange(1.0, n + 1.0)) + math.log(q / (1.0 - q))
    logs = n * math.log1p(-q) + np.concatenate(([0.0], np.cumsum(steps)))
    return np.asarray(np.minimum(1.0, np.cumsum(np.exp(logs))))


def _checked(samples: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("there are no samples")
    if not np.isfinite(values).all():
        raise ValueError("a sample is not a finite number")
    return values
