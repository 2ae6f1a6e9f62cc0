"""Pages of sweeps: a list, a queue, a run that is followed live; starting, cancelling, retrying."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from dashboard.errors import DashboardError
from dashboard.measurements import exports
from dashboard.models import State, Sweep, SweepRun, Trigger
from dashboard.request_text import without_nul
from dashboard.sweeps import selectors, services
from dashboard.sweeps.estimates import estimate_remaining
from dashboard.sweeps.queue import place_of, queues

PAGE_SIZE = 50
CAN_RUN = "dashboard.can_run_sweep"


@require_GET
def sweeps(request: HttpRequest) -> HttpResponse:
    page = Paginator(selectors.sweep_runs(), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "sweeps": selectors.sweeps(),
        "queues": queues(timezone.now()),
        "page": page,
        "query": "",
        "section": "sweeps",
    }
    return render(request, "dashboard/sweeps.html", context)


@require_POST
@permission_required(CAN_RUN, raise_exception=True)
def sweep_start(request: HttpRequest) -> HttpResponse:
    sweep = get_object_or_404(Sweep, name=without_nul(request.POST.get("sweep", "")))
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
    tag = selectors.sweep_run_tag(pk)
    if tag is not None and request.headers.get("If-None-Match") == tag:
        return HttpResponseNotModified(headers={"ETag": tag})
    context = _sweep_run_context(pk)
    response = render(request, "dashboard/_sweep_run_live.html", context)
    response["ETag"] = context["run"].tag
    response["Cache-Control"] = "no-cache"
    return response


def _sweep_run_context(pk: int) -> dict[str, Any]:
    try:
        found = selectors.sweep_run(pk)
    except SweepRun.DoesNotExist as error:
        raise Http404(f"There is no sweep run {pk}.") from error
    now = timezone.now()
    return {
        "run": found,
        "points": selectors.points(found),
        "left": estimate_remaining([found], now)[found.pk] if found.active else None,
        "ahead": place_of(found, queues(now)) if found.state == State.QUEUED else None,
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
