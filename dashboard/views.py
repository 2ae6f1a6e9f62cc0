"""Pages. Each reads with `selectors`, changes with `services`, and works without a script."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.text import slugify
from django.views.decorators.http import require_GET, require_POST

from dashboard import exports, selectors, services
from dashboard.errors import DashboardError
from dashboard.forms import RunFilterForm
from dashboard.models import Measurement, Sweep, SweepRun, Trigger
from dashboard.pages import run_page

PAGE_SIZE = 50
CAN_RUN = "dashboard.can_run_sweep"


# Runs ------------------------------------------------------------------------------------------------
@require_GET
def runs(request: HttpRequest) -> HttpResponse:
    """The list of measurements, or, with ?failed=1, of every point that failed."""
    form = RunFilterForm(request.GET, selectors.facet_values())
    valid = form.is_valid()
    failed = request.GET.get("failed") == "1"
    if failed:
        found: Any = selectors.failed_points()
    else:
        found = selectors.measurements(form.filter()) if valid else Measurement.objects.none()
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "form": form,
        "page": page,
        "failed": failed,
        "failures": selectors.failed_points().count(),
        "filtered": any(value for key, value in request.GET.items() if key not in ("page", "sort", "failed")),
        "query": _query_without(request, "page"),
        "total": Measurement.objects.count(),
        "section": "runs",
    }
    status = HTTPStatus.OK if valid else HTTPStatus.BAD_REQUEST
    return render(request, "dashboard/runs.html", context, status=status)


@require_GET
def runs_export(request: HttpRequest, form: str) -> HttpResponse:
    filters = RunFilterForm(request.GET, selectors.facet_values())
    if not filters.is_valid():
        return _refused(filters.errors.get_json_data())
    found = selectors.measurements(filters.filter())
    if (count := found.count()) > exports.MAX_ROWS:
        return _refused(
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


# Sweeps ----------------------------------------------------------------------------------------------
@require_GET
def sweeps(request: HttpRequest) -> HttpResponse:
    page = Paginator(selectors.sweep_runs(), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"sweeps": selectors.sweeps(), "page": page, "query": "", "section": "sweeps"}
    return render(request, "dashboard/sweeps.html", context)


@require_POST
@permission_required(CAN_RUN, raise_exception=True)
def sweep_start(request: HttpRequest) -> HttpResponse:
    sweep = get_object_or_404(Sweep, name=request.POST.get("sweep", ""))
    try:
        started = services.start_sweep(sweep=sweep, trigger=Trigger.PAGE, who=_user(request))
    except (DashboardError, ValidationError) as error:
        messages.error(request, _sentence(error))
        return redirect("dashboard:sweeps")
    return redirect(started)


@require_GET
def sweep_run(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "dashboard/sweep_run.html", _sweep_run_context(pk))


@require_GET
def sweep_run_live(request: HttpRequest, pk: int) -> HttpResponse:
    """The part of the page that changes. Answers 304 while the run is still at the version asked about."""
    context = _sweep_run_context(pk)
    tag = f'"{context["run"].version}"'
    if request.headers.get("If-None-Match") == tag:
        return HttpResponseNotModified(headers={"ETag": tag})
    response = render(request, "dashboard/_sweep_run_live.html", context)
    response["ETag"] = tag
    response["Cache-Control"] = "no-cache"
    return response


def _sweep_run_context(pk: int) -> dict[str, Any]:
    try:
        found = selectors.sweep_run(pk)
    except SweepRun.DoesNotExist as error:
        raise Http404(f"There is no sweep run {pk}.") from error
    return {
        "run": found,
        "points": selectors.points(found),
        "remaining_s": selectors.remaining_seconds(found, timezone.now()) if found.active else None,
        "section": "sweeps",
    }


@require_GET
def sweep_run_export(_request: HttpRequest, pk: int, form: str) -> HttpResponse:
    context = _sweep_run_context(pk)
    found: SweepRun = context["run"]
    about = {"run": found.pk, "name": found.name, "state": found.state, "attempt": found.attempt}
    rows = exports.point_rows(context["points"])
    return exports.respond(form, rows, exports.POINT_COLUMNS, f"sweep-{pk}-{found.name}", about)


@require_POST
@permission_required(CAN_RUN, raise_exception=True)
def sweep_run_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(SweepRun, pk=pk)
    try:
        services.cancel(run=found, who=_user(request))
    except DashboardError as error:
        messages.error(request, _sentence(error))
    return redirect(found)


@require_POST
@permission_required(CAN_RUN, raise_exception=True)
def sweep_run_retry(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(SweepRun, pk=pk)
    try:
        count = services.retry_failed(run=found, who=_user(request))
        messages.success(request, f"{count} failed point{'' if count == 1 else 's'} queued again.")
    except DashboardError as error:
        messages.error(request, _sentence(error))
    return redirect(found)


def _user(request: HttpRequest) -> Any:
    """The signed-in user; `permission_required` has seen to it that there is one."""
    return request.user


def _sentence(error: Exception) -> str:
    return " ".join(error.messages) if isinstance(error, ValidationError) else str(error)


def _refused(reason: object) -> HttpResponse:
    return JsonResponse({"error": reason}, status=HTTPStatus.BAD_REQUEST)


def _query_without(request: HttpRequest, *names: str) -> str:
    query = request.GET.copy()
    for name in names:
        query.pop(name, None)
    return query.urlencode()
