"""`/dashboard/regressions/`: what stands, what was closed, and how every configuration stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.errors import DashboardError
from dashboard.models import Measurement, Regression
from dashboard.regressions import selectors, services
from dashboard.regressions.chart import regression_chart
from dashboard.regressions.evidence import commits_url, evidence
from dashboard.regressions.rule import NEEDED
from engine.measuring.change_points import LEAST, LEVEL

PAGE_SIZE = 50
CAN_HANDLE = "dashboard.can_handle_regression"
SHOWN = ("standing", "closed", "all")
"""Regressions that stand, those that do not, or the standing of every configuration."""


@require_safe
def regressions(request: HttpRequest) -> HttpResponse:
    show = request.GET.get("show", "standing")
    if show not in SHOWN:
        raise Http404(f"There is no list {show[:40]!r}; there are {', '.join(SHOWN)}.")
    rows: Any = selectors.standings() if show == "all" else selectors.regressions(closed=show == "closed")
    context = {
        "page": Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page")),
        "show": show,
        "query": f"show={show}",
        "counts": selectors.counts(),
        "rule": _rule(),
        "section": "regressions",
    }
    return render(request, "dashboard/regressions.html", context)


@require_safe
def regression(request: HttpRequest, pk: int) -> HttpResponse:
    found = _find(pk)
    context = {
        "regression": found,
        "chart": regression_chart(found, selectors.points(found)),
        "evidence": evidence(found),
        "commits_url": commits_url(found),
        "together": selectors.together(found),
        "comments": found.comments.all(),
        "longest": services.COMMENT_LENGTH,
        "section": "regressions",
    }
    return render(request, "dashboard/regression.html", context)


@require_POST
@permission_required(CAN_HANDLE, raise_exception=True)
def acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    return _do(request, pk, lambda found, who: services.acknowledge(regression=found, who=who))


@require_POST
@permission_required(CAN_HANDLE, raise_exception=True)
def accept(request: HttpRequest, pk: int) -> HttpResponse:
    return _do(request, pk, lambda found, who: services.accept(regression=found, who=who))


@require_POST
@permission_required(CAN_HANDLE, raise_exception=True)
def comment(request: HttpRequest, pk: int) -> HttpResponse:
    text = request.POST.get("text", "")
    return _do(request, pk, lambda found, who: services.comment(regression=found, who=who, text=text))


@require_POST
@permission_required(CAN_HANDLE, raise_exception=True)
def pin(request: HttpRequest, pk: int) -> HttpResponse:
    """Pins a run as the reference of its configuration, or, with `unpin`, takes the pin away."""
    found = Measurement.objects.select_related("configuration").defer("document").filter(pk=pk).first()
    if found is None:
        raise Http404(f"There is no run {pk}.")
    who: Any = request.user
    try:
        if "unpin" in request.POST:
            services.unpin(measurement=found, who=who)
        else:
            services.pin(measurement=found, who=who)
    except DashboardError as error:
        messages.error(request, str(error))
    return redirect(found)


def _do(request: HttpRequest, pk: int, verb: Callable[[Regression, Any], object]) -> HttpResponse:
    """Does it; a refusal becomes a message on the regression's page."""
    found = _find(pk)
    try:
        verb(found, request.user)
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
    except DashboardError as error:
        messages.error(request, str(error))
    return redirect(found)


def _find(pk: int) -> Regression:
    try:
        return selectors.regression(pk)
    except Regression.DoesNotExist as error:
        raise Http404(f"There is no regression {pk}.") from error


def _rule() -> dict[str, Any]:
    return {
        "in_a_row": LEVEL,
        "needed": NEEDED,
        "least": LEAST,
    }
