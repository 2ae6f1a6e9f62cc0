"""The history page, its exports, and the notes on it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from dashboard.history.changes import changes
from dashboard.history.chart import chart_data
from dashboard.history.forms import HistoryForm, NoteForm
from dashboard.history.notes import add_note, notes_on, remove_note
from dashboard.history.series import MAX_SERIES, Sample, Series, read_series
from dashboard.measurements import exports
from dashboard.measurements.metrics import METRICS
from dashboard.measurements.selectors import Newest, measurements_by_key, newest_of_each
from dashboard.models import Annotation, Configuration

TABLE_ROWS = 100
"""More rows than this help nobody on a page; the exports have them all."""
LISTED = 60
"""Configurations in the list to choose from; the filters reach the others."""
CAN_NOTE = "dashboard.add_annotation"
CAN_REMOVE_ANY = "dashboard.delete_annotation"


@require_GET
def history(request: HttpRequest) -> HttpResponse:
    known = newest_of_each()
    form = HistoryForm(request.GET, [one.configuration for one in known])
    valid = form.is_valid()
    chosen = form.cleaned_data["configuration"] if valid else []
    name = form.cleaned_data["metric"] if valid else "tok_s"
    metric = METRICS[name]
    series = read_series(chosen, metric)
    found = changes(series, metric)
    notes = list(notes_on(chosen)) if chosen else []
    context = {
        "form": form,
        "listed": _list(known, form if valid else None, chosen),
        "known": len(known),
        "chosen": chosen,
        "metric": metric,
        "metric_name": name,
        "metrics": METRICS,
        "axis": form.cleaned_data["axis"] if valid else "time",
        "most": MAX_SERIES,
        "series": series,
        "table": table(series),
        "samples": sum(len(one.samples) for one in series),
        "chart": chart_data(series, metric, found, notes),
        "changes": found,
        "notes": notes,
        "may_remove_any": request.user.has_perm(CAN_REMOVE_ANY),
        "note_form": NoteForm(chosen=chosen) if chosen and request.user.has_perm(CAN_NOTE) else None,
        "query": request.GET.urlencode(),
        "section": "history",
    }
    status = HTTPStatus.OK if valid else HTTPStatus.BAD_REQUEST
    return render(request, "dashboard/history.html", context, status=status)


def _list(known: list[Newest], form: HistoryForm | None, chosen: list[int]) -> list[dict[str, Any]]:
    """The configurations to choose from: those chosen first, then those that the facets let through."""
    ours = [one for one in known if one.configuration.pk in chosen]
    others = [
        one
        for one in known
        if one.configuration.pk not in chosen and (form is None or form.admits(one.configuration))
    ]
    shown = [*ours, *others[:LISTED]]
    newest = measurements_by_key(one.measurement for one in shown)
    return [
        {"configuration": one.configuration, "newest": newest[one.measurement], "runs": one.runs}
        for one in shown
        if one.measurement in newest
    ]


def table(series: list[Series]) -> list[tuple[Configuration, Sample]]:
    """The newest samples of each series, newest first, TABLE_ROWS in all at most."""
    most = TABLE_ROWS // max(1, len(series))
    return [(one.configuration, sample) for one in series for sample in reversed(one.samples[-most:])]


@require_GET
def history_export(request: HttpRequest, form: str) -> HttpResponse:
    asked = HistoryForm(request.GET, [one.configuration for one in newest_of_each()])
    if not asked.is_valid():
        return JsonResponse({"error": asked.errors.get_json_data()}, status=HTTPStatus.BAD_REQUEST)
    name = asked.cleaned_data["metric"]
    metric = METRICS[name]
    rows = exports.history_rows(read_series(asked.cleaned_data["configuration"], metric), name, metric.unit)
    return exports.respond(form, rows, exports.HISTORY_COLUMNS, f"history-{name}", {"unit": metric.unit})


@require_POST
@permission_required(CAN_NOTE, raise_exception=True)
def note_add(request: HttpRequest) -> HttpResponse:
    chosen = [int(key) for key in request.GET.getlist("configuration") if key.isascii() and key.isdecimal()]
    form = NoteForm(request.POST, chosen=chosen[:MAX_SERIES])
    if form.is_valid():
        add_note(who=_user(request), **form.cleaned_data)
        messages.success(request, "The note is on the chart.")
    else:
        for field, errors in form.errors.items():
            label = form.fields[field].label or field
            messages.error(request, f"The note was not kept. {label}: {' '.join(map(str, errors))}")
    return _back(request)


@require_POST
def note_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """For the person who typed it, or one who may remove any."""
    note = get_object_or_404(Annotation, pk=pk)
    user = _user(request)
    own = user.is_authenticated and note.who_id == user.pk
    if not (own or user.has_perm(CAN_REMOVE_ANY)):
        raise PermissionDenied
    remove_note(note=note, who=user)
    messages.success(request, "The note is gone.")
    return _back(request)


def _back(request: HttpRequest) -> HttpResponseRedirect:
    """To the history as it was asked for: the query of this address is that page's."""
    query = QueryDict(request.META.get("QUERY_STRING", ""))
    return HttpResponseRedirect(f"{reverse('dashboard:history')}?{query.urlencode()}")


def _user(request: HttpRequest) -> Any:
    """The visitor's account; whether it may do what it asks is for the caller to see."""
    return request.user
