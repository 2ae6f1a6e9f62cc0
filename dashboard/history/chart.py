"""What the history's script draws, as columns: names once, numbers in arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dashboard.history.changes import Change
from dashboard.history.series import Series
from dashboard.measurements.metrics import Metric
from dashboard.models import Annotation

DIGITS = 7
"""Significant digits of a figure on the page; exports have all of them."""


def chart_data(
    found: Sequence[Series], metric: Metric, changes: Iterable[Change], notes: Iterable[Annotation]
) -> dict[str, Any]:
    """Times in seconds since 1970; `sha` holds indexes into `commits`; `differs`, indexes of wrong tokens."""
    commits: dict[str, int] = {}
    return {
        "unit": metric.unit,
        "series": [_series(one, commits) for one in found],
        "commits": list(commits),
        "steps": [
            {"series": c.series, "at": c.at, "before": c.before, "after": c.after, "better": c.better}
            for c in changes
        ],
        "notes": [{"at": note.at.timestamp(), "commit": note.git_sha, "text": note.text} for note in notes],
    }


def _series(one: Series, commits: dict[str, int]) -> dict[str, Any]:
    columns = list(zip(*one.samples, strict=True)) or [()] * 9
    keys, seconds, value, low, high, n, shas, verified, _kinds = columns
    return {
        "label": str(one.configuration),
        "run": keys,
        "time": seconds,
        "value": round_values(value),
        "low": round_values(low),
        "high": round_values(high),
        "n": n,
        "sha": [commits.setdefault(sha, len(commits)) for sha in shas],
        "differs": [index for index, right in enumerate(verified) if not right],
    }


def round_values(values: Sequence[float | None]) -> list[float | None]:
    """`values` to DIGITS significant digits, None where there is none."""
    exact = np.array(values, dtype=np.float64)  # None becomes NaN
    known = np.isfinite(exact) & (exact != 0)
    power = np.zeros_like(exact)
    power[known] = DIGITS - 1 - np.floor(np.log10(np.abs(exact[known])))
    short = np.where(power >= 0, np.round(exact * 10.0**power) / 10.0**power, np.round(exact))
    listed: list[float | None] = short.tolist()
    for index in np.flatnonzero(np.isnan(exact)):
        listed[index] = None
    return listed
