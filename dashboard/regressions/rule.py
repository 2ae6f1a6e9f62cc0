"""When a speed counts as lost: two points in a row beyond the configuration's threshold.

The baseline is the median of up to WINDOW points before the newest two. The threshold is the
configuration's own, if somebody set one; else NOISES times the spread of those points (1.4826 x the median
absolute deviation, relative to the median), and at least LEAST_THRESHOLD. No database here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dashboard.measurements.metrics import METRICS
from dashboard.models import Label

WINDOW = 10
LEAST_BASELINE = 3
"""A median of fewer points is no baseline."""
IN_A_ROW = 2
NEEDED = LEAST_BASELINE + IN_A_ROW
LEAST_THRESHOLD = 0.05
NOISES = 3.0
MAD_TO_SIGMA = 1.4826
"""Turns the median absolute deviation of normal noise into its standard deviation."""

WATCHED = {name: 1 if metric.more_is_better else -1 for name, metric in METRICS.items() if metric.watched}
"""The metrics that are watched: 1 where more is better, -1 where less is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`baseline` in the metric's unit; `change` of the newest value and `threshold` relative to it.

    All three are None while there are fewer than NEEDED points.
    """

    label: Label
    n: int
    baseline: float | None = None
    threshold: float | None = None
    change: float | None = None


def judge(values: Sequence[float], better: int, threshold: float | None = None) -> Verdict:
    """What the newest of `values` (oldest first, all above 0) say; `better` is that of WATCHED."""
    newest, before = values[-IN_A_ROW:], values[-IN_A_ROW - WINDOW : -IN_A_ROW]
    if len(before) < LEAST_BASELINE:
        return Verdict(Label.INSUFFICIENT, len(values))
    baseline = median(before)
    limit = threshold if threshold is not None else spread_threshold(before)
    return Verdict(
        _label([loss(value, baseline, better) for value in newest], limit),
        len(newest) + len(before),
        baseline,
        limit,
        newest[-1] / baseline - 1,
    )


def spread_threshold(before: Sequence[float]) -> float:
    """The relative change that noise alone seldom reaches in points like `before`."""
    middle = median(before)
    sigma = MAD_TO_SIGMA * median(abs(value - middle) for value in before)
    return max(LEAST_THRESHOLD, NOISES * sigma / middle)


def loss(value: float, baseline: float, better: int) -> float:
    """How much worse than `baseline`, relative to it; below 0 if it is better."""
    return better * (baseline - value) / baseline


def recovered(values: Sequence[float], baseline: float, threshold: float, better: int) -> bool:
    """Whether the newest points are back within the threshold of the baseline that a regression began at."""
    newest = values[-IN_A_ROW:]
    return len(newest) == IN_A_ROW and all(loss(v, baseline, better) <= threshold for v in newest)


def _label(losses: Sequence[float], limit: float) -> Label:
    if all(value > limit for value in losses):
        return Label.REGRESSION
    if losses[-1] > limit:
        return Label.SUSPICIOUS
    if all(value < -limit for value in losses):
        return Label.IMPROVEMENT
    return Label.STEADY
