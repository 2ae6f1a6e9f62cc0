"""What the last good and the first bad run of a regression differ in: how sure, and in which phase."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from dashboard.compare.breakdown import PhaseDifference, breakdown
from dashboard.compare.environments import Difference, differences
from dashboard.compare.figures import Cell, Compared, compare
from dashboard.measurements.selectors import with_documents
from dashboard.models import Regression
from engine.measuring.measurement import Measurement as Result


@dataclass(frozen=True, slots=True)
class Evidence:
    """`change` is the metric's in the bad run against the good one. `phases`: the largest loss first."""

    change: Cell | None
    phases: tuple[PhaseDifference, ...]
    environment: tuple[Difference, ...]
    compare: str
    """The query of the page that compares the two."""

    @property
    def culprit(self) -> PhaseDifference | None:
        """The phase that lost most, if one did."""
        return self.phases[0] if self.phases and self.phases[0].parts[1].change > 0 else None


def evidence(regression: Regression) -> Evidence | None:
    """None if one of the two runs is gone. One query."""
    keys = (regression.last_good_id, regression.first_bad_id)
    if None in keys:
        return None
    found = with_documents([key for key in keys if key is not None])
    if len(found) < len(set(keys)):
        return None
    rows = [found[key] for key in keys if key is not None]
    results = [Result.from_dict(row.document) for row in rows]
    figures = compare([Compared(r, row.digest) for r, row in zip(results, rows, strict=True)])
    change = next((row.cells[1] for row in figures if row.metric.column == regression.metric), None)
    parts = breakdown([result.phases_us for result in results])
    phases = sorted(parts.rows, key=lambda phase: phase.parts[1].change, reverse=True) if parts else []
    query = "&".join(f"run={key}" for key in keys)
    return Evidence(change, tuple(phases), differences(results).environment, query)


def commits_url(regression: Regression) -> str:
    """Where the commits between good and bad can be read; empty without REPO_URL or without two commits."""
    good, bad = (sha.partition("-")[0] for sha in (regression.good_sha, regression.bad_sha))
    if not (settings.REPO_URL and good and bad and good != bad):
        return ""
    return f"{settings.REPO_URL}/compare/{good}...{bad}"
