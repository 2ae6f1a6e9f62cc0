"""The audit log's page."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib.auth.decorators import permission_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.audit import log as audit
from dashboard.request_text import without_nul

PAGE_SIZE = 50


@require_GET
@permission_required("dashboard.view_auditentry", raise_exception=True)
def audit_log(request: HttpRequest) -> HttpResponse:
    act, by = (without_nul(request.GET.get(name, "")) for name in ("act", "by"))
    act, by = act[:40], by.strip()[:150]
    query = urlencode({name: value for name, value in (("act", act), ("by", by)) if value})
    context = {
        "page": Paginator(audit.entries(act=act, by=by), PAGE_SIZE).get_page(request.GET.get("page")),
        "acts": audit.ACTS,
        "act": act,
        "by": by,
        "query": query,
        "section": "sweeps",
    }
    return render(request, "dashboard/audit.html", context)
