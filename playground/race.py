"""The race: one prompt, two or three contestants that start together, each with a clock of its own."""

from __future__ import annotations

from dataclasses import asdict

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from playground.access import members_only
from playground.examples import EXAMPLES
from playground.limits import DEFAULTS, LIMITS
from playground.ownership import ensure_owner
from playground.sharing import MOST_LANES, PACERS


@require_safe
@gzip_page  # safe from BREACH: the page repeats nothing of the request
@members_only
async def race(request: HttpRequest) -> HttpResponse:
    await ensure_owner(request)
    context = {
        "examples": [example for example in EXAMPLES if example["kind"] == "completion"],
        "defaults": DEFAULTS,
        "limits": asdict(LIMITS),
        "lanes": range(1, MOST_LANES + 1),
        "pacer": {"least": PACERS[0], "most": PACERS[1]},
    }
    return render(request, "playground/race.html", context)
