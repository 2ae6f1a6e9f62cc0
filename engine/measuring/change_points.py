"""Where the level of a series changes: the one detector of History's steps and of the regression rule.

A series is read in its order, as its points came in. After each point the newest 2 to NEWEST of them are
compared with up to BASE points before them that lie in the same level: their difference, over the noise of
a difference of such means, is a contrast (the generalised likelihood ratio of a shift in the mean; Lai,
"Sequential changepoint detection in quality control and dynamical systems", JRSS B 57, 1995). The largest
contrast above a limit is a step, a new level begins there, and reading goes on. So what was found stays
found when more points come (unless they bring the medians of its two levels within LEAST), and the page that
draws a series says what the rule said on the day.

Benchmarks are not Gaussian, so three things stand around it. The most extreme of the newest points is left
out: one bad run is no level. The base leaves out a tenth on either side. And the noise is that of neighbours,
which a step hardly moves: the larger of a robust estimate and of a root mean square without the largest
few, so that a machine with two speeds has the noise of both.

A machine with two speeds, slow by chance for a whole run, has noise that no mean sees through. So runs of
points are counted as well: `k` newest ones that all lie as low as a share `f` of the base does are chance
with f ** k, whatever the distribution (a sign test with the base's own quantile).

A loss too slow for any step shows against the best that the series ever held: `drift`.
tools/detection_power.py measures what all of this finds and how often it cries wolf (docs/measuring.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

LIMIT, LIMIT_OF_TWO = 4.5, 6.0
"""Contrast, in standard deviations, from which a difference is a step; of two points more is asked."""
LEAST = 0.01
"""The smallest relative change that is called a step."""
LEVEL = 2
"""Points that make a level."""
FIRST_BASE = 5
"""Points that the first level needs before a step from it can be told."""
BASE = 30
NEWEST = 12
NOISE_POINTS = 60
"""Points before the newest ones from which the noise is estimated."""
DRIFT_POINTS = 10
DRIFT = 0.02
"""The smallest relative loss against the best DRIFT_POINTS in a row that is called a drift."""
DRIFT_NOISES = 4.0
CHANCE = {3: 4e-3, 4: 3e-3, 5: 2e-3}
"""The largest f ** k at which `k` points in a row are a step; of more points it is that of 5."""
ROW_NOISES = {3: 2.5, 4: 2.1, 5: 1.8}
"""Noises within one speed by which each of `k` points must lie to one side of the base's median."""
ROW_BASE, ROW_LEAST_BASE = 60, 8
_MAD_TO_SIGMA = 1.4826
_LOWER_QUARTILE_TO_SIGMA = 1.0 / 0.3186
_TRIMMED_DIFFERENCES = 2
_GLANCE = 0.5
"""Noises by which both newest points must lie to one side before the contrasts are computed."""


@dataclass(frozen=True, slots=True)
class Step:
    """The level changes between the points `at - 1` and `at`. A level is the median between two steps.

    `told` points had been read when it was found.
    """

    at: int
    before: float
    after: float
    told: int

    @property
    def change(self) -> float:
        """Relative to the level before."""
        return self.after / self.before - 1.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The newest points lie below (above) the best that the series held, which ended before point `since`."""

    since: int
    best: float
    newest: float


def steps(values: Sequence[float], *, least: float = LEAST) -> list[Step]:
    """The steps of a series in its order. Time is O(n).

    Raises ValueError if a value is not a finite number above 0: a level is compared by its ratio.
    """
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("a step is a relative change; every value must be a finite number above 0")
    cuts: dict[int, int] = {}
    start = 0
    for end in range(FIRST_BASE + LEVEL, len(values) + 1):
        cut = _level_end(values, start, end, least, FIRST_BASE if start == 0 else LEVEL)
        cut = _row_end(values, start, end, least) if cut is None else cut
        if cut is not None:
            cuts[cut] = end
            start = cut
    while True:
        edges = [0, *cuts, len(values)]
        levels = [median(values[a:b]) for a, b in pairwise(edges)] if cuts else []
        found = [Step(at, levels[i], levels[i + 1], end) for i, (at, end) in enumerate(cuts.items())]
        weakest = min(found, key=lambda step: _size(step.change), default=None)
        if weakest is None or _size(weakest.change) >= math.log1p(least):
            return found
        del cuts[weakest.at]


def _level_end(values: Sequence[float], start: int, end: int, least: float, base_points: int) -> int | None:
    """Where the level that began at `start` ends, as the points before `end` tell; None if it goes on."""
    known = values[max(0, end - LEVEL - NOISE_POINTS) : end - LEVEL]
    sigma = noise(known) * (1.0 + 2.0 / len(known))
    near = _trimmed_mean(values[max(start, end - LEVEL - BASE) : end - LEVEL])
    glance = _GLANCE * sigma
    below = all(value < near - glance for value in values[end - LEVEL : end])
    if not below and not all(value > near + glance for value in values[end - LEVEL : end]):
        return None
    apart = sorted(abs(value - near) for value in values[end - LEVEL : end])
    pair_agrees = apart[0] >= apart[-1] / 2.0  # else the first may be an odd end of the old level
    best, found = 0.0, None
    for count in range(LEVEL, min(NEWEST, end - start - base_points) + 1):
        cut = end - count
        base = values[max(start, cut - BASE) : cut]
        level, newest = _trimmed_mean(base), _without_extreme(values[cut:end], below)
        floor = max(sigma, 1e-9 * level)
        contrast = abs(newest - level) / (floor * math.sqrt(1.0 / count + 1.0 / len(base)))
        large = _size(newest / level - 1.0) >= math.log1p(least)
        enough = contrast > LIMIT if count > LEVEL else pair_agrees and contrast > LIMIT_OF_TWO
        if contrast > best and enough and large and (newest < level) == below:
            best, found = contrast, cut
    return found


def _row_end(values: Sequence[float], start: int, end: int, least: float) -> int | None:
    """Where the newest points began to lie all to one side, more of them than by chance; None if not."""
    most = min(NEWEST, end - start - ROW_LEAST_BASE)
    if most < min(CHANCE):
        return None
    known = values[max(0, end - ROW_BASE) : end]
    sigma = _noise_within(known) * (1.0 + 8.0 / len(known))  # few points know it badly
    usual = median(values[max(start, end - ROW_BASE) : end])
    below = values[end - 1] < usual
    if any((value < usual) != below for value in values[end - min(CHANCE) : end]):
        return None
    best, found = 1.0, None
    for count in range(min(CHANCE), most + 1):
        cut = end - count
        base = values[max(start, cut - ROW_BASE) : cut]
        level = median(base)
        nearest = max(values[cut:end]) if below else min(values[cut:end])
        if (nearest < level) != below or _size(nearest / level - 1.0) < math.log1p(least):
            continue
        alike = min(count, max(CHANCE))
        if abs(nearest - level) < ROW_NOISES[alike] * sigma:
            continue
        as_far = sum((value <= nearest) if below else (value >= nearest) for value in base)
        chance = ((as_far + 1.0) / (len(base) + 2.0)) ** count
        if chance <= CHANCE[alike] and chance / CHANCE[alike] < best:
            best, found = chance / CHANCE[alike], cut
    return found


def _size(change: float) -> float:
    """How large a relative change is, the same for a fall as for the rise that undoes it."""
    return abs(math.log1p(change))


def noise(values: Sequence[float]) -> float:
    """Standard deviation of the noise, judged by the differences of neighbours: steps hardly count."""
    differences = sorted(abs(b - a) for a, b in pairwise(values))
    if not differences:
        return 0.0
    robust = _MAD_TO_SIGMA * median(differences)
    kept = differences[: len(differences) - min(_TRIMMED_DIFFERENCES, len(differences) // 4)]
    return max(robust, math.sqrt(fmean(d * d for d in kept))) / math.sqrt(2.0)


def _noise_within(values: Sequence[float]) -> float:
    """Standard deviation within one speed of a machine that may have two: few neighbours differ by less."""
    differences = sorted(abs(b - a) for a, b in pairwise(values))
    quartile = differences[len(differences) // 4] if differences else 0.0
    return _LOWER_QUARTILE_TO_SIGMA * quartile / math.sqrt(2.0)


def drift(values: Sequence[float], *, more_is_better: bool) -> Drift | None:
    """Whether the newest DRIFT_POINTS are worse than the best so many in a row, by DRIFT and by noise.

    Their medians are compared, so that a machine's second speed is no drift.
    """
    if len(values) < 2 * DRIFT_POINTS:
        return None
    ends = range(DRIFT_POINTS, len(values) + 1)
    levels = [median(values[end - DRIFT_POINTS : end]) for end in ends]
    at, best = (max if more_is_better else min)(enumerate(levels), key=lambda pair: pair[1])
    loss = (best - levels[-1]) / best if more_is_better else (levels[-1] - best) / best
    if loss <= max(DRIFT, DRIFT_NOISES * noise(values[-NOISE_POINTS:]) / best):
        return None
    return Drift(min(at + DRIFT_POINTS, len(values) - 1), best, levels[-1])


def _trimmed_mean(values: Sequence[float]) -> float:
    """Without a tenth on either side."""
    out = len(values) // 10
    return fmean(sorted(values)[out : len(values) - out])


def _without_extreme(values: Sequence[float], below: bool) -> float:
    """The mean without the lowest (highest) one."""
    return (sum(values) - (min(values) if below else max(values))) / (len(values) - 1)
