"""What stands before every websocket: the page's origin, and how many sockets one visitor may have open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Any

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.utils.http import is_same_domain

from config.addresses import visitor_address
from config.bounds import Census

Application = Callable[..., Awaitable[Any]]


class OwnOrigin:
    """Lets in pages of this site: a websocket carries no CSRF token, so its origin stands in for one.

    The rule is Django's for forms: scheme, host and port are those under which this server was asked, or the
    origin is one of CSRF_TRUSTED_ORIGINS. Another port of the same host is another site.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        allowed: Application = self._application if is_own_origin(scope) else WebsocketDenier()
        return await allowed(scope, receive, send)


class FewSockets:
    """Turns away whoever has as many open as LIMIT_SOCKETS allows, before anything is done for it."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._census = Census(0, 0)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        address = visitor_address(scope)
        self._census.per_address, self._census.altogether = settings.LIMIT_SOCKETS
        if not self._census.enter(address):
            deny: Application = WebsocketDenier()
            return await deny(scope, receive, send)
        try:
            return await self._application(scope, receive, send)
        finally:
            self._census.leave(address)


def is_own_origin(scope: dict[str, Any]) -> bool:
    """Whether the page that opens this websocket is one of ours."""
    request = ASGIRequest({**scope, "type": "http", "method": "GET"}, BytesIO())
    origin = request.headers.get("Origin", "")
    try:
        own = f"{'https' if request.is_secure() else 'http'}://{request.get_host()}"
    except DisallowedHost:
        return False
    return origin == own or any(_is_of(origin, trusted) for trusted in settings.CSRF_TRUSTED_ORIGINS)


def _is_of(origin: str, trusted: str) -> bool:
    """`trusted` is an origin, or one for all subdomains: `https://*.example.com`."""
    scheme, _, host = trusted.partition("://")
    found, _, netloc = origin.partition("://")
    return found == scheme and is_same_domain(netloc, host.removeprefix("*"))
