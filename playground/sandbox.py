"""The frame in which programs run: a page of its own, whose policy lets nothing in or out but messages.

`sandbox allow-scripts` gives it an opaque origin: no cookie, no storage, no request as this site. Its scripts
get what they need by message from the page around it, so they may connect nowhere. docs/playground.md has
the threat model.
"""

from __future__ import annotations

from csp.constants import NONCE, NONE, SELF
from csp.decorators import csp
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_safe

POLICY = {
    "default-src": [NONE],
    "script-src": [NONCE, "'wasm-unsafe-eval'"],
    "worker-src": ["blob:"],
    "base-uri": [NONE],
    "form-action": [NONE],
    "frame-ancestors": [SELF],
    "sandbox": ["allow-scripts"],
}


@csp(POLICY)
@never_cache
@xframe_options_sameorigin
@require_safe
def frame(request: HttpRequest) -> HttpResponse:
    return render(request, "playground/run_frame.html")
