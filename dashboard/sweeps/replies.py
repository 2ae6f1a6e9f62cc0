"""What a click that starts a run is answered with, on the page and in the admin."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest

from dashboard.models import SweepRun
from dashboard.sweeps import services


def warn_if_not_enqueued(request: HttpRequest, run: SweepRun) -> bool:
    """Whether the person had to be told that Celery does not know of the run yet."""
    reason = services.reason_not_enqueued(run=run)
    if reason:
        messages.error(request, reason)
    return bool(reason)
