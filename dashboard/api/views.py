"""`/api/…`: runs, series, configurations, comparisons, regressions, the badge.

django-ninja checks the parameters and writes the OpenAPI description (`/api/openapi.json`, `/api/docs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from ninja import NinjaAPI, Query, Schema

from dashboard.api import errors, parameters, schemas, shapes
from dashboard.api.badge import badge as badge_of
from dashboard.api.errors import ApiError, not_found
from dashboard.api.paging import newest_first, next_url, oldest_first
from dashboard.api.push import Pushed, PushToken, push
from dashboard.compare.environments import differences
from dashboard.compare.figures import Compared, compare
from dashboard.compare.forms import MAX_RUNS
from dashboard.measurements.configurations import FACETS
from dashboard.measurements.foreign import Told
from dashboard.measurements.metrics import METRICS
from dashboard.measurements.selectors import with_documents
from dashboard.models import Configuration, Measurement, MetricStatus, Regression
from engine.measuring.measurement import Measurement as Result


class Api(NinjaAPI):
    """HEAD is answered as GET is, and described once."""

    def get_openapi_schema(self, **kwargs: Any) -> Any:
        found = super().get_openapi_schema(**kwargs)
        for methods in found["paths"].values():
            methods.pop("head", None)
        return found


api = Api(
    title="Monolane benchmarks",
    version="1",
    description=(
        "What the dashboard shows, as JSON. Times are ISO 8601 in UTC. Pages go by key: ask for `next` until"
        " it is null. A wrong parameter is a 400 whose `error.message` says what is allowed."
    ),
    urls_namespace="dashboard_api",
)
errors.install(api)
BADGE_S = 300
"""How long a proxy may keep a badge."""
READ = ["GET", "HEAD"]


@api.api_operation(READ, "/runs", response=schemas.RunsPage)
def runs(request: HttpRequest, query: Query[parameters.Runs]) -> Any:
    """Runs, newest first."""
    asked = _read_query(request, query)
    rows = _between(Measurement.objects.select_related("configuration").defer("document"), asked)
    for facet in FACETS:
        if asked[facet] not in (None, ""):
            rows = rows.filter(**{f"configuration__{facet}": asked[facet]})
    if asked["configuration"]:
        rows = rows.filter(configuration=asked["configuration"])
    if asked["sha"]:
        rows = rows.filter(git_sha__startswith=asked["sha"])
    if asked["verified"] is not None:
        rows = rows.filter(verified=asked["verified"] == "true")
    page, cursor = newest_first(rows, asked["cursor"], asked["limit"])
    return {"runs": [shapes.run(row) for row in page], "next": next_url(request, cursor)}


@api.post("/runs", auth=PushToken(), response=Pushed)
def push_runs(request: HttpRequest, query: Query[parameters.Push]) -> Any:
    """Stores measurements: a schema-1 document, a list of them, or another tool's results."""
    asked = _read_query(request, query)
    return push(request, Told(asked["model"] or "", asked["hardware"] or "", asked["context"]))


@api.api_operation(READ, "/runs/{pk}", response=schemas.RunWithDocument)
def run(request: HttpRequest, pk: int) -> Any:
    """One run with its whole schema-1 document."""
    _only(request, ())
    found = with_documents([pk]).get(pk) if pk <= parameters.MAX_KEY else None
    if found is None:
        raise not_found("run", pk)
    return {**shapes.run(found), "document": found.document}


@api.api_operation(READ, "/configurations", response=schemas.ConfigurationsPage)
def configurations(request: HttpRequest, query: Query[parameters.Configurations]) -> Any:
    """Configurations by their id, each with how it stands."""
    asked = _read_query(request, query)
    limit = asked["limit"]
    rows = Configuration.objects.filter(pk__gt=asked["after"]).order_by("pk")
    for facet in ("model", "backend", "hardware"):
        if asked[facet]:
            rows = rows.filter(**{facet: asked[facet]})
    found = list(rows.prefetch_related("standings")[: limit + 1])
    page = found[:limit]
    after = page[-1].pk if len(found) > limit else None
    return {
        "configurations": [
            {**shapes.configuration(c), "standings": [shapes.standing(s) for s in c.standings.all()]}
            for c in page
        ],
        "next": _with(request, "after", after),
    }


@api.api_operation(READ, "/series", response=schemas.SeriesPage)
def series(request: HttpRequest, query: Query[parameters.Series]) -> Any:
    """One metric of one configuration over time, oldest first."""
    asked = _read_query(request, query)
    configuration = Configuration.objects.filter(pk=asked["configuration"]).first()
    if configuration is None:
        raise not_found("configuration", asked["configuration"])
    metric = METRICS[asked["metric"]]
    rows = Measurement.objects.filter(configuration=configuration).annotate(**metric.columns())
    rows = _between(rows.filter(Q(("the_value__isnull", False))), asked).only(
        "pk", "created", "git_sha", "verified", "verified_kind"
    )
    page, cursor = oldest_first(rows, asked["cursor"], asked["limit"])
    return {
        "configuration": shapes.configuration(configuration),
        "metric": asked["metric"],
        "unit": metric.unit,
        "more_is_better": metric.more_is_better,
        "points": [_point(row) for row in page],
        "next": next_url(request, cursor),
    }


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
        "verified_kind": row.verified_kind,
    }


@api.api_operation(READ, "/comparisons", response=schemas.Comparison)
def comparisons(request: HttpRequest, query: Query[parameters.Comparison]) -> Any:
    """Two to six runs: each figure with its change from the first run, and what else differs."""
    keys = _run_keys(_read_query(request, query)["run"])
    found = with_documents(keys)
    if missing := [str(key) for key in keys if key not in found]:
        raise not_found("run", ", ".join(missing))
    results = {key: Result.from_dict(row.document) for key, row in found.items()}
    rows = compare([Compared(results[key], found[key].digest) for key in keys])
    return {
        "runs": [shapes.run(found[key]) for key in keys],
        **shapes.comparison(rows, differences([results[key] for key in keys])),
    }


@api.api_operation(READ, "/regressions", response=schemas.RegressionsPage)
def regressions(request: HttpRequest, query: Query[parameters.Regressions]) -> Any:
    """Regressions, newest first."""
    asked = _read_query(request, query)
    limit = asked["limit"]
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
    return {"regressions": [shapes.regression(row) for row in page], "next": _with(request, "before", before)}


@api.api_operation(READ, "/badge.svg")
def badge(request: HttpRequest, query: Query[parameters.Badge]) -> Any:
    """The newest verified speed of a configuration as an SVG."""
    asked = _read_query(request, query)
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
    context = {"badge": badge_of(newest, standing, asked["label"] or "")}
    response = render(request, "dashboard/badge.svg", context, content_type="image/svg+xml")
    response["Cache-Control"] = f"max-age={BADGE_S}"
    return response


def no_such_path(_request: HttpRequest, path: str) -> HttpResponse:
    """Every other path below /api/."""
    message = (
        f"There is no /api/{path[:60]}; there are runs, runs/ID, configurations, series, comparisons, "
        "regressions, badge.svg, docs and openapi.json."
    )
    return errors.answer(ApiError(HTTPStatus.NOT_FOUND, message))


def _read_query(request: HttpRequest, query: Schema) -> dict[str, Any]:
    """The parameters by name. Raises ApiError for one that there is not."""
    known = tuple(type(query).model_fields)
    _only(request, known)
    return {name: getattr(query, name) for name in known}


def _only(request: HttpRequest, known: Sequence[str]) -> None:
    if strange := sorted(set(request.GET) - set(known)):
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            f"“{strange[0][:40]}” is no parameter of this address; it takes {', '.join(known) or 'none'}.",
            strange[0][:40],
        )


def _run_keys(texts: list[str]) -> list[int]:
    if not 2 <= len(texts) <= MAX_RUNS:
        count = "1 run is" if len(texts) == 1 else f"{len(texts)} runs are"
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            f"run: {count} given; a comparison takes 2 to {MAX_RUNS}: ?run=3&run=9.",
            "run",
        )
    for text in texts:
        if not (text.isascii() and text.isdecimal() and 0 < int(text[:25]) <= parameters.MAX_KEY):
            message = f"run: “{text[:40]}” is no run; a run is a whole number, its id."
            raise ApiError(HTTPStatus.BAD_REQUEST, message, "run")
    return [int(text) for text in texts]


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
