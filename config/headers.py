"""Headers of every page: what it may use of the device, and that nobody keeps a copy of what is private."""

from __future__ import annotations

from typing import Any

from asgiref.sync import iscoroutinefunction
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

_UNUSED = ("camera", "microphone", "geolocation", "payment", "usb", "serial", "midi", "display-capture")
PERMISSIONS_POLICY = ", ".join(f"{feature}=()" for feature in _UNUSED)


@sync_and_async_middleware
def protective_headers(get_response: Any) -> Any:
    """A page shown to an account is kept by no cache, the browser's own included."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _protect(await get_response(request), request)

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return _protect(get_response(request), request)

    return answer


def _protect(response: HttpResponseBase, request: HttpRequest) -> HttpResponseBase:
    response.setdefault("Permissions-Policy", PERMISSIONS_POLICY)
    session = getattr(request, "session", None)
    # What was accessed lies in memory: asking it touches no database.
    if session is not None and session.accessed and session.get(SESSION_KEY):
        response.setdefault("Cache-Control", "private, no-store")
    return response
