"""A run's trace, for the page's waterfall and as a download."""

from __future__ import annotations

from http import HTTPStatus

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET

from dashboard.models import Trace


@require_GET
def trace(request: HttpRequest, pk: int) -> HttpResponse:
    """Chrome trace JSON, as it is stored, compressed: a small one may hold a hundred times its size.

    `?download` names a file.
    """
    stored = Trace.objects.filter(pk=pk).first()
    if stored is None:
        raise Http404(f"Run {pk} has no trace.")
    tag = f'"{pk}-{stored.stored.timestamp():.0f}-{stored.spans}"'
    if "download" in request.GET:
        response = HttpResponse(bytes(stored.content), content_type="application/gzip")
        response["Content-Disposition"] = f'attachment; filename="run-{pk}.trace.json.gz"'
        return response
    if request.headers.get("If-None-Match") == tag:
        return HttpResponseNotModified(headers={"ETag": tag})
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        message = "A trace is sent compressed: ask with Accept-Encoding: gzip, or for ?download."
        return HttpResponse(message, content_type="text/plain", status=HTTPStatus.NOT_ACCEPTABLE)
    response = HttpResponse(bytes(stored.content), content_type="application/json")
    response["Content-Encoding"] = "gzip"
    response["ETag"] = tag
    response["Cache-Control"] = "no-cache"
    patch_vary_headers(response, ["Accept-Encoding"])
    return response
