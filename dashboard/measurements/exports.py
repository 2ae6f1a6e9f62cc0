"""CSV and JSON of what a page shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.http import HttpResponse, JsonResponse

from dashboard.history.series import Series
from dashboard.measurements.configurations import NATURAL_KEY, values_of
from dashboard.measurements.metrics import METRICS
from dashboard.models import Measurement, Point
from dashboard.sweeps.matrix import AXES

MAX_ROWS = 10_000
"""An export holds at most this many rows; a larger one is refused, never cut short in silence."""

RUN_COLUMNS = (
    "id", "created", "git_sha", *NATURAL_KEY, "tok_s", "ci_low", "ci_high", "samples",
    *(metric.csv for metric in METRICS.values() if metric.column != "tok_s"),
    "verified", "verified_kind", "source",
)  # fmt: skip


def run_rows(found: Iterable[Measurement]) -> list[dict[str, Any]]:
    return [
        {
            "id": m.pk,
            "created": m.created.isoformat(),
            "git_sha": m.git_sha,
            **values_of(m.configuration),
            "ci_low": m.ci_low,
            "ci_high": m.ci_high,
            "samples": m.samples,
            **{metric.csv: getattr(m, metric.column) for metric in METRICS.values()},
            "verified": m.verified,
            "verified_kind": m.verified_kind,
            "source": m.source,
        }
        for m in found
    ]


HISTORY_COLUMNS = (
    "configuration",
    "run",
    "created",
    "metric",
    "unit",
    "value",
    "low",
    "high",
    "n",
    "git_sha",
    "verified",
    "verified_kind",
)


def history_rows(series: Sequence[Series], metric: str, unit: str) -> list[dict[str, Any]]:
    return [
        {
            "configuration": str(one.configuration),
            "run": sample.key,
            "created": sample.created.isoformat(),
            "metric": metric,
            "unit": unit,
            "value": sample.value,
            "low": sample.low,
            "high": sample.high,
            "n": sample.n,
            "git_sha": sample.git_sha,
            "verified": sample.verified,
            "verified_kind": sample.verified_kind,
        }
        for one in series
        for sample in one.samples
    ]


POINT_COLUMNS = (
    "index",
    "attempt",
    *AXES,
    "state",
    "run",
    "tok_s",
    "worker",
    "error_code",
    "error",
    "started",
    "ended",
)


def point_rows(points: Iterable[Point]) -> list[dict[str, Any]]:
    rows = []
    for p in points:
        measured = getattr(p, "measurement", None)
        rows.append(
            {
                "index": p.index,
                "attempt": p.attempt,
                **{axis: getattr(p, axis) for axis in AXES},
                "sampling": p.sampling_label,
                "state": p.state,
                "run": measured.pk if measured else None,
                "tok_s": measured.tok_s if measured else None,
                "worker": p.worker,
                "error_code": p.error_code,
                "error": p.error,
                "started": p.started.isoformat() if p.started else None,
                "ended": p.ended.isoformat() if p.ended else None,
            }
        )
    return rows


def respond(
    form: str,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    filename: str,
    about: Mapping[str, Any] | None = None,
) -> HttpResponse:
    """`rows` as a download called `filename`, in `form` ("csv" or "json"); `about` goes along in JSON."""
    response: HttpResponse
    if form == "json":
        response = JsonResponse({**(about or {}), "rows": list(rows)}, json_dumps_params={"indent": 1})
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows({k: _cell(v) for k, v in row.items()} for row in rows)
        response = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{filename}.{form}"'
    return response


def _cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula is quoted: imported names are not to be trusted."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return value
