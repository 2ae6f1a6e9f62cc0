"""The playground's page."""

from __future__ import annotations

from dataclasses import asdict

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from engine.sampling import OPTIONS
from playground.access import members_only
from playground.examples import EXAMPLES
from playground.limits import DEFAULTS, LIMITS, SAMPLING_OPTIONS
from playground.ownership import ensure_owner

READING_TOK_S = 5
"""What people read: 238 words of English a minute (Brysbaert, 2019), at about four tokens to three words."""


@require_safe
@gzip_page  # safe from BREACH: the page repeats nothing of the request
@members_only
async def index(request: HttpRequest) -> HttpResponse:
    await ensure_owner(request)
    context = {
        "examples": list(EXAMPLES),
        "defaults": DEFAULTS,
        "fields": [(option, DEFAULTS["sampling"][option.name]) for option in OPTIONS if option.form],
        "limits": asdict(LIMITS),
        "sampling_options": SAMPLING_OPTIONS,
        "kept_days": settings.GENERATION_DAYS,
        "reading_tok_s": READING_TOK_S,
        "share_days": settings.SHARE_DAYS,
    }
    return render(request, "playground/index.html", context)
