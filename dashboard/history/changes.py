"""Steps of a series, with the range of commits that each one lies in."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.history.series import Sample, Series
from dashboard.measurements.metrics import Metric
from engine.measuring.change_points import steps


@dataclass(frozen=True, slots=True)
class Change:
    """The level moved between two neighbouring samples of a series: `last` before it, `first` after it."""

    series: int
    at: int
    """Index of `first` in its series."""
    last: Sample
    first: Sample
    before: float
    after: float
    better: bool

    @property
    def change(self) -> float:
        """Relative to the level before."""
        return self.after / self.before - 1.0

    @property
    def same_commit(self) -> bool:
        """The code did not change: look at the environment."""
        return self.last.git_sha == self.first.git_sha


def changes(found: list[Series], metric: Metric) -> list[Change]:
    """The change points of every series, the newest first. Samples whose tokens differ count too."""
    listed = []
    for number, one in enumerate(found):
        samples = one.samples
        for step in steps([s.value for s in samples]) if all(s.value > 0 for s in samples) else []:
            better = (step.after > step.before) == metric.more_is_better
            listed.append(
                Change(
                    number, step.at, samples[step.at - 1], samples[step.at], step.before, step.after, better
                )
            )
    return sorted(listed, key=lambda c: c.first.seconds, reverse=True)
