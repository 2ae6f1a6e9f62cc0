"""`/api/…`: runs, series, configurations, comparisons, regressions, the badge."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, TypeVar

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from dashboard.api import forms, shapes
from dashboard.api.badge import badge as badge_of
from dashboard.api.errors import ApiError, first_problem, not_found, read_only
from dashboard.api.paging import newest_first, next_url, oldest_first
from dashboard.compare.environments import differences
from dashboard.compare.figures import Compared, compare
from dashboard.measurements.configurations import FACETS
from dashboard.measurements.metrics import METRICS
from dashboard.measurements.selectors import with_documents
from dashboard.models import Configuration, Measurement, MetricStatus, Regression
from engine.measuring.measurement import Measurement as Result

BADGE_S = 300
"""How long a proxy may keep a badge."""
F = TypeVar("F", bound=forms.Parameters)


@read_only
def runs(request: HttpRequest) -> HttpResponse:
    """Runs, newest first."""
    asked = _checked(forms.RunsForm(request.GET))
    rows = _between(Measurement.objects.select_related("configuration").defer("document"), asked)
    for facet in FACETS:
        if asked[facet] not in (None, ""):
            rows = rows.filter(**{f"configuration__{facet}": asked[facet]})
    if asked["configuration"]:
        rows = rows.filter(configuration=asked["configuration"])
    if asked["sha"]:
        rows = rows.filter(git_sha__startswith=asked["sha"])
    if asked["verified"] is not None:
        rows = rows.filter(verified=asked["verified"])
    page, cursor = newest_first(rows, asked["cursor"], asked["limit"])
    return JsonResponse({"runs": [shapes.run(row) for row in page], "next": next_url(request, cursor)})


@read_only
def run(request: HttpRequest, pk: int) -> HttpResponse:
    """One run with its whole schema-1 document."""
    _checked(forms.Parameters(request.GET))
    found = with_documents([pk]).get(pk)
    if found is None:
        raise not_found("run", pk)
    return JsonResponse({**shapes.run(found), "document": found.document})


@read_only
def configurations(request: HttpRequest) -> HttpResponse:
    """Configurations by their id, each with how it stands."""
    asked = _checked(forms.ConfigurationsForm(request.GET))
    limit = asked["limit"] or 50
    rows = Configuration.objects.filter(pk__gt=asked["after"] or 0).order_by("pk")
    for facet in ("model", "backend", "hardware"):
        if asked[facet]:
            rows = rows.filter(**{facet: asked[facet]})
    found = list(rows.prefetch_related("standings")[: limit + 1])
    page = found[:limit]
    after = page[-1].pk if len(found) > limit else None
    return JsonResponse(
        {
            "configurations": [
                {**shapes.configuration(c), "standings": [shapes.standing(s) for s in c.standings.all()]}
                for c in page
            ],
            "next": _with(request, "after", after),
        }
    )


@read_only
def series(request: HttpRequest) -> HttpResponse:
    """One metric of one configuration over time, oldest first."""
    asked = _checked(forms.SeriesForm(request.GET))
    configuration = Configuration.objects.filter(pk=asked["configuration"]).first()
    if configuration is None:
        raise not_found("configuration", asked["configuration"])
    metric = METRICS[asked["metric"]]
    rows = Measurement.objects.filter(configuration=configuration).annotate(**metric.columns())
    rows = _between(rows.filter(Q(("the_value__isnull", False))), asked).only(
        "pk", "created", "git_sha", "verified"
    )
    page, cursor = oldest_first(rows, asked["cursor"], asked["limit"])
    return JsonResponse(
        {
            "configuration": shapes.configuration(configuration),
            "metric": asked["metric"],
            "unit": metric.unit,
            "more_is_better": metric.more_is_better,
            "points": [_point(row) for row in page],
            "next": next_url(request, cursor),
        }
    )


def _point(row: Any) -> dict[str, Any]:
    """A measurement annotated with a metric's columns."""
    return {
        "run": row.pk,
        "created": row.created.isoformat(),
        "value": row.the_value,
        "ci95": None if row.the_low is None or row.the_high is None else [row.the_low, row.the_high],
        "n": row.the_n,
        "git_sha": row.git_sha,
        "verified": row.verified,
    }


@read_only
def comparisons(request: HttpRequest) -> HttpResponse:
    """Two to six runs: each figure with its change from the first run, and what else differs."""
    keys: list[int] = _checked(forms.ComparisonForm(request.GET))["runs"]
    found = with_documents(keys)
    if missing := [str(key) for key in keys if key not in found]:
        raise not_found("run", ", ".join(missing))
    results = {key: Result.from_dict(row.document) for key, row in found.items()}
    rows = compare([Compared(results[key], found[key].digest) for key in keys])
    return JsonResponse(
        {
            "runs": [shapes.run(found[key]) for key in keys],
            **shapes.comparison(rows, differences([results[key] for key in keys])),
        }
    )


@read_only
def regressions(request: HttpRequest) -> HttpResponse:
    """Regressions, newest first."""
    asked = _checked(forms.RegressionsForm(request.GET))
    limit = asked["limit"] or 50
    rows = Regression.objects.select_related("configuration").order_by("-pk")
    if asked["fate"]:
        rows = rows.filter(fate=asked["fate"])
    if asked["configuration"]:
        rows = rows.filter(configuration=asked["configuration"])
    if asked["before"]:
        rows = rows.filter(pk__lt=asked["before"])
    found = list(rows[: limit + 1])
    page = found[:limit]
    before = page[-1].pk if len(found) > limit else None
    return JsonResponse(
        {"regressions": [shapes.regression(row) for row in page], "next": _with(request, "before", before)}
    )


@read_only
def badge(request: HttpRequest) -> HttpResponse:
    """The newest verified speed of a configuration as an SVG."""
    asked = _checked(forms.BadgeForm(request.GET))
    newest = (
        Measurement.objects.filter(configuration=asked["configuration"], verified=True)
        .select_related("configuration")
        .defer("document")
        .order_by("-created", "-pk")
        .first()
    )
    if newest is None:
        raise not_found("verified run of configuration", asked["configuration"])
    standing = MetricStatus.objects.filter(configuration=newest.configuration_id, metric="tok_s").first()
    context = {"badge": badge_of(newest, standing, asked["label"])}
    response = render(request, "dashboard/badge.svg", context, content_type="image/svg+xml")
    response["Cache-Control"] = f"max-age={BADGE_S}"
    return response


@read_only
def unknown(_request: HttpRequest, path: str) -> HttpResponse:
    """Every other path below /api/."""
    raise ApiError(
        HTTPStatus.NOT_FOUND,
        f"There is no /api/{path[:60]}; there are runs, runs/ID, configurations, series, comparisons, "
        "regressions and badge.svg.",
    )


def _checked(form: F) -> dict[str, Any]:
    if not form.is_valid():
        raise first_problem(form)
    return form.cleaned_data


def _between(
    rows: QuerySet[Measurement, Measurement], asked: dict[str, Any]
) -> QuerySet[Measurement, Measurement]:
    if asked["since"]:
        rows = rows.filter(created__gte=asked["since"])
    if asked["until"]:
        rows = rows.filter(created__lte=asked["until"])
    return rows


def _with(request: HttpRequest, name: str, value: int | None) -> str | None:
    """This address with another `name`; None without a value."""
    if value is None:
        return None
    query = request.GET.copy()
    query[name] = str(value)
    return f"{request.path}?{query.urlencode()}"
