"""Where the level of a series changes: a piecewise-constant curve, and the points at which it steps.

The statistic is the CUSUM contrast of seeded binary segmentation (Kovács, Bühlmann, Li, Munk, "Seeded
binary segmentation", Biometrika 110, 2023) with greedy selection: a fixed family of intervals is searched
for the split that explains most of their squared error; the best one is kept, the intervals that hold it
are dropped, and so on while the gain is worth a penalty of PENALTY x ln(n) noise variances.

Benchmarks are not Gaussian, so three things stand before and after it. The noise is estimated from the
median absolute difference of neighbours, which a step does not move. A lone value far outside its
neighbourhood is pulled in to its edge: one bad run is no level. And a step that is kept must move the
median by at least `least` of it, with LEVEL points on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PENALTY = 4.0
"""Noise variances x ln(n) that a step must explain; 2 is the bound for independent Gaussian noise."""
LEVEL = 3
"""Points that make a level: two could be one disturbed minute."""
LEAST = 0.02
"""The smallest relative change that is called a step."""
_DECAY = math.sqrt(0.5)
"""How much shorter each layer of intervals is."""
_MAD_TO_SIGMA = 1.4826
_CLIP = 3.0
"""How many noise deviations a value may lie from the median of its neighbourhood."""


@dataclass(frozen=True, slots=True)
class Step:
    """The level changes between the points `at - 1` and `at`. A level is the median between two steps."""

    at: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """Relative to the level before."""
        return self.after / self.before - 1.0


def steps(values: Sequence[float], *, least: float = LEAST) -> list[Step]:
    """The steps of a series in its order; none if it has fewer than 2 x LEVEL points.

    Takes O(n log n) time. Raises ValueError if a value is not a finite number above 0: a level is
    compared by its ratio.
    """
    series = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(series) & (series > 0)).all():
        raise ValueError("a step is a relative change; every value must be a finite number above 0")
    if len(series) < 2 * LEVEL:
        return []
    sigma = noise(series)
    smooth = _pulled_in(series, sigma)
    floor = max(sigma, 1e-9 * float(np.median(series)))
    cuts = _greedy(smooth, PENALTY * math.log(len(series)) * floor**2)
    return _levels(series, cuts, least)


def noise(series: Floats) -> float:
    """Standard deviation of the noise, judged by the differences of neighbours: steps hardly count."""
    differences = np.abs(np.diff(series))
    return float(_MAD_TO_SIGMA * np.median(differences) / math.sqrt(2.0)) if len(differences) else 0.0


def _pulled_in(series: Floats, sigma: float) -> Floats:
    """`series`, each value at most _CLIP deviations from the median of the five around it."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(series, 2, mode="edge"), 5)
    middle = np.median(windows, axis=1)
    return np.clip(series, middle - _CLIP * sigma, middle + _CLIP * sigma)


def _greedy(series: Floats, penalty: float) -> list[int]:
    """The cuts worth `penalty`, in order: best first, each removing the intervals that it falls into."""
    starts, ends, cuts, gains = _candidates(series)
    alive = gains > penalty
    found: list[int] = []
    while alive.any():
        best = int(cuts[np.argmax(np.where(alive, gains, -1.0))])
        found.append(best)
        alive &= (best <= starts) | (best >= ends)
    return sorted(found)


def _candidates(series: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], Floats]:
    """Each seeded interval's start, end, best cut, and the squared error that the cut explains."""
    total = np.concatenate(([0.0], np.cumsum(series - series.mean())))
    parts = [_layer(total, length) for length in _lengths(len(series))]
    starts, ends, cuts, gains = (np.concatenate(column) for column in zip(*parts, strict=True))
    return starts, ends, cuts, gains


def _lengths(n: int) -> list[int]:
    lengths = [n]
    while lengths[-1] > 2 * LEVEL:
        lengths.append(max(2 * LEVEL, min(lengths[-1] - 1, math.ceil(lengths[-1] * _DECAY))))
    return lengths


def _layer(total: Floats, length: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], Floats]:
    """The intervals of one length, half a length apart, and the best cut of each."""
    n = len(total) - 1
    count = 1 if length >= n else 2 * math.ceil(n / length) - 1
    starts = np.unique(np.linspace(0, n - length, count).round().astype(np.intp))
    inside = np.arange(LEVEL, length - LEVEL + 1, dtype=np.intp)
    left = total[starts[:, None] + inside] - total[starts][:, None]
    whole = (total[starts + length] - total[starts])[:, None]
    # Between-groups sum of squares of the two sides, each around the mean of the interval.
    gain = (left - whole * (inside / length)) ** 2 * (length / (inside * (length - inside)))
    best = gain.argmax(axis=1)
    return starts, starts + length, starts + inside[best], gain[np.arange(len(starts)), best]


def _levels(series: Floats, cuts: list[int], least: float) -> list[Step]:
    """The cuts as steps between medians; the smallest change goes first until all are worth it."""
    cuts = list(cuts)
    while True:
        edges = [0, *cuts, len(series)]
        medians = [float(np.median(series[a:b])) for a, b in pairwise(edges)]
        found = [Step(at, medians[i], medians[i + 1]) for i, at in enumerate(cuts)]
        weak = min(found, key=lambda s: _size(s.change), default=None)
        short = next((s for i, s in enumerate(found) if _too_short(edges, i)), None)
        drop = short or (weak if weak and _size(weak.change) < math.log1p(least) else None)
        if drop is None:
            return found
        cuts.remove(drop.at)


def _size(change: float) -> float:
    """How large a relative change is, the same for a fall as for the rise that undoes it."""
    return abs(math.log1p(change))


def _too_short(edges: list[int], index: int) -> bool:
    """Whether the level on either side of cut `index` has too few points."""
    return min(edges[index + 1] - edges[index], edges[index + 2] - edges[index + 1]) < LEVEL
