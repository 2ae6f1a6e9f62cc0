"""`/metrics`: what each app has to say, one after the other."""

from __future__ import annotations

import structlog
from asgiref.sync import sync_to_async
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.prometheus import exposition as of_the_dashboard
from playground.health import exposition as of_the_playground
from playground.health import may_watch
from playground.metrics import CONTENT_TYPE

log = structlog.get_logger(__name__)


@require_safe
async def metrics(request: HttpRequest) -> HttpResponse:
    """For MONITORS and the staff; 404 to others.

    The dashboard's part is left out while the database is away: the rest matters most then.
    """
    if not await may_watch(request):
        raise Http404
    text = await of_the_playground()
    try:
        text += await sync_to_async(of_the_dashboard)()
    except DatabaseError as error:
        log.warning("metrics_without_the_dashboard", error=str(error))
    return HttpResponse(text, content_type=CONTENT_TYPE)
