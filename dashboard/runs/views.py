"""Pages. Each reads with `selectors`, changes with `services`, and works without a script."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.text import slugify
from django.views.decorators.http import require_GET

from dashboard.compare.forms import MAX_RUNS
from dashboard.measurements import exports, selectors
from dashboard.measurements.metrics import LISTED
from dashboard.models import Measurement
from dashboard.runs.forms import RunFilterForm
from dashboard.runs.page import run_page
from dashboard.sweeps.selectors import failed_points

PAGE_SIZE = 50


# Runs ------------------------------------------------------------------------------------------------
@require_GET
def runs(request: HttpRequest) -> HttpResponse:
    """The list of measurements, or, with ?failed=1, of every point that failed."""
    form = RunFilterForm(request.GET, selectors.facet_values())
    valid = form.is_valid()
    failed = request.GET.get("failed") == "1"
    if failed:
        found: Any = failed_points()
    else:
        found = selectors.measurements(form.filter()) if valid else Measurement.objects.none()
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "form": form,
        "page": page,
        "failed": failed,
        "failures": failed_points().count(),
        "filtered": any(value for key, value in request.GET.items() if key not in ("page", "sort", "failed")),
        "query": _query_without(request, "page"),
        "total": Measurement.objects.count(),
        "listed": LISTED,
        "most": MAX_RUNS,
        "section": "runs",
    }
    status = HTTPStatus.OK if valid else HTTPStatus.BAD_REQUEST
    return render(request, "dashboard/runs.html", context, status=status)


@require_GET
def runs_export(request: HttpRequest, form: str) -> HttpResponse:
    filters = RunFilterForm(request.GET, selectors.facet_values())
    if not filters.is_valid():
        return _refusal(filters.errors.get_json_data())
    found = selectors.measurements(filters.filter())
    if (count := found.count()) > exports.MAX_ROWS:
        return _refusal(
            f"These filters match {count} runs; an export takes at most {exports.MAX_ROWS}: narrow them."
        )
    return exports.respond(form, exports.run_rows(found), exports.RUN_COLUMNS, "runs")


@require_GET
def run(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "dashboard/run.html", {"page": run_page(_measurement(pk)), "section": "runs"})


@require_GET
def run_export(_request: HttpRequest, pk: int, form: str) -> HttpResponse:
    """JSON is the schema-1 document itself, which `import_results` reads; CSV is the row of the list."""
    found = _measurement(pk)
    name = f"run-{pk}-{slugify(found.configuration.model)}-{slugify(found.configuration.backend)}"
    if form == "json":
        response = JsonResponse(found.document, json_dumps_params={"indent": 1})
        response["Content-Disposition"] = f'attachment; filename="{name}.json"'
        return response
    return exports.respond(form, exports.run_rows([found]), exports.RUN_COLUMNS, name)


def _measurement(pk: int) -> Measurement:
    try:
        return selectors.measurement(pk)
    except Measurement.DoesNotExist as error:
        raise Http404(f"There is no run {pk}.") from error


def _refusal(reason: object) -> HttpResponse:
    return JsonResponse({"error": reason}, status=HTTPStatus.BAD_REQUEST)


def _query_without(request: HttpRequest, *names: str) -> str:
    query = request.GET.copy()
    for name in names:
        query.pop(name, None)
    return query.urlencode()
