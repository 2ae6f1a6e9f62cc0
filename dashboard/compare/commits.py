"""Two commits over every configuration that was measured at both, and the geometric mean of the changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from django.db.models import Count, Max

from dashboard.models import Configuration, Measurement

MOST_COMMITS = 60
"""Commits to choose from, those measured last."""
BETTER, WORSE, UNCLEAR = "better", "worse", "no clear change"


@dataclass(frozen=True, slots=True)
class Commit:
    sha: str
    runs: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A configuration at both commits: its newest verified run of each; `times` is head over base."""

    configuration: Configuration
    base: Measurement
    head: Measurement
    times: float
    verdict: str
    """By the runs' own 95 % intervals: a change is clear where they do not overlap."""

    @property
    def change(self) -> float:
        return self.times - 1.0


@dataclass(frozen=True, slots=True)
class CommitComparison:
    pairs: tuple[Pair, ...]
    mean: float | None
    """The geometric mean of `times`; None without pairs."""

    def count(self, verdict: str) -> int:
        return sum(pair.verdict == verdict for pair in self.pairs)

    @property
    def better(self) -> int:
        return self.count(BETTER)

    @property
    def worse(self) -> int:
        return self.count(WORSE)


def measured_commits() -> list[Commit]:
    """The commits measured last, the newest first. One query."""
    rows = (
        Measurement.objects.exclude(git_sha="")
        .order_by()
        .values("git_sha")
        .annotate(runs=Count("pk"), last=Max("created"))
        .order_by("-last")[:MOST_COMMITS]
    )
    return [Commit(row["git_sha"], row["runs"]) for row in rows]


def compare_commits(base: str, head: str) -> CommitComparison:
    """Decode speed at `head` relative to `base`, the largest loss first. Two queries."""
    before, after = _newest(base), _newest(head)
    pairs = [_pair(before[key], after[key]) for key in before.keys() & after.keys()]
    pairs.sort(key=lambda pair: (pair.times, str(pair.configuration)))
    return CommitComparison(tuple(pairs), geometric_mean([p.times for p in pairs]) if pairs else None)


def _newest(sha: str) -> Mapping[int, Measurement]:
    """The newest verified run of each configuration at that commit."""
    rows: Iterable[Measurement] = (
        Measurement.objects.filter(git_sha=sha, verified=True)
        .select_related("configuration")
        .defer("document")
        .order_by("created", "pk")
    )
    return {row.configuration_id: row for row in rows}


def _pair(base: Measurement, head: Measurement) -> Pair:
    verdict = BETTER if head.ci_low > base.ci_high else WORSE if head.ci_high < base.ci_low else UNCLEAR
    return Pair(head.configuration, base, head, head.tok_s / base.tok_s, verdict)
