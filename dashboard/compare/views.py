"""The page that compares runs."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.compare.breakdown import breakdown
from dashboard.compare.commits import compare_commits, measured_commits
from dashboard.compare.environments import differences
from dashboard.compare.figures import Compared, compare
from dashboard.compare.forms import MAX_RUNS, CommitsForm, CompareForm
from dashboard.measurements.selectors import with_documents
from dashboard.measurements.variation import Variation, between_runs
from dashboard.models import Measurement
from engine.measuring.measurement import Measurement as Result


@dataclass(frozen=True, slots=True)
class Column:
    """One run of the comparison. `without` is the query of the same comparison without it."""

    row: Measurement
    result: Result
    number: int
    without: str
    variation: Variation | None


@require_GET
def compare_runs(request: HttpRequest) -> HttpResponse:
    """Two to six runs side by side; with fewer, how to choose them."""
    form = CompareForm(request.GET)
    valid = form.is_valid()
    keys: list[int] = form.cleaned_data["runs"] if valid else []
    columns = _columns(keys)
    context = {
        "form": form,
        "columns": columns,
        "keys": keys,
        "most": MAX_RUNS,
        "section": "compare",
        **(_comparison(columns) if len(columns) > 1 else {}),
    }
    status = HTTPStatus.OK if valid else HTTPStatus.BAD_REQUEST
    return render(request, "dashboard/compare.html", context, status=status)


def _columns(keys: list[int]) -> list[Column]:
    found = with_documents(keys)
    if missing := [str(key) for key in keys if key not in found]:
        raise Http404(f"There is no run {', '.join(missing)}.")
    results = {key: Result.from_dict(row.document) for key, row in found.items()}
    # One query a configuration: runs of one share it, and most comparisons are within one.
    newest = {row.configuration_id: row for row in sorted(found.values(), key=lambda row: row.created)}
    variation = {configuration: between_runs(row) for configuration, row in newest.items()}
    return [
        Column(
            found[key],
            results[key],
            number,
            _query([*keys[:number], *keys[number + 1 :]]),
            variation[found[key].configuration_id],
        )
        for number, key in enumerate(keys)
    ]


def _query(keys: list[int]) -> str:
    return "&".join(f"run={key}" for key in keys)


def _comparison(columns: list[Column]) -> dict[str, object]:
    results = [column.result for column in columns]
    found = differences(results)
    return {
        "rows": compare([Compared(column.result, column.row.digest) for column in columns]),
        "differences": found,
        "difference_groups": [
            ("Environment", found.environment),
            ("Settings", found.settings),
            ("Code", found.code),
        ],
        "breakdown": breakdown([result.phases_us for result in results]),
    }


@require_GET
def commits(request: HttpRequest) -> HttpResponse:
    """Two commits over every configuration that was measured at both."""
    form = CommitsForm(request.GET, measured_commits())
    base = head = ""
    found = None
    if form.is_valid():
        base, head = form.cleaned_data["base"], form.cleaned_data["head"]
        found = compare_commits(base, head)
    context = {"form": form, "found": found, "base": base, "head": head, "section": "compare"}
    status = HTTPStatus.OK if found or not form.is_bound else HTTPStatus.BAD_REQUEST
    return render(request, "dashboard/commits.html", context, status=status)
