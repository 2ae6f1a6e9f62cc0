"""The overview, filtered by the URL."""

from __future__ import annotations

from http import HTTPStatus

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.measurements.selectors import newest_of_each
from dashboard.overview import forms, page
from dashboard.overview.published import devices_of
from dashboard.overview.summary import summary
from dashboard.sweeps.selectors import failed_points
from engine.measuring.roofline import PUBLISHED

GROUPS_A_PAGE = 12


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """The newest figures of every hardware, model and backend, or of those that the filters name."""
    newest = newest_of_each()
    form = forms.OverviewForm(request.GET, [one.configuration for one in newest])
    valid = form.is_valid()
    shown = [one for one in newest if form.admits(one.configuration)] if valid else []
    found = Paginator(page.group_keys(shown), GROUPS_A_PAGE).get_page(request.GET.get("page"))
    groups = page.groups(list(found))
    fastest = summary(shown) if found.number == 1 else []
    query = request.GET.copy()
    query.pop("page", None)
    context = {
        "form": form,
        "summary": fastest,
        "sampled": any(row.sampled for row in fastest),
        "groups": groups,
        "page": found,
        "query": query.urlencode(),
        "filtered": any(value for key, value in request.GET.items() if key != "page"),
        "known": bool(newest),
        "published": _published_figures(groups),
        "failures": failed_points().count(),
        "section": "overview",
    }
    status = HTTPStatus.OK if valid else HTTPStatus.BAD_REQUEST
    return render(request, "dashboard/overview.html", context, status=status)


def _published_figures(groups: list[page.Group]) -> list[str]:
    """The published figures that a scale shows, each with its source."""
    shown = {
        (placed.mark.label, placed.mark.tok_s)
        for group in groups
        for row in group.rows
        for placed in row.scale.marks
        if placed.mark.kind == "published"
    }
    return [
        f"{p.who} published {p.tok_s:,.0f} tok/s for {p.model} on {devices_of(p)} ({p.source})"
        for p in PUBLISHED
        if (f"{p.who}, {devices_of(p)}", p.tok_s) in shown
    ]
