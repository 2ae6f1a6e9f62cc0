"""The ASGI application: HTTP through Django, the API by a shorter way, websockets through Channels."""

from __future__ import annotations

import os
from typing import Any, cast

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
pages = get_asgi_application()

# These import models and settings, so the apps must be ready before.
from config.alive import ALIVE, alive  # noqa: E402
from config.api_handler import PREFIX, ApiHandler  # noqa: E402
from config.sockets import FewSockets, OwnOrigin  # noqa: E402
from dashboard.live.routing import websocket_urlpatterns as dashboard_sockets  # noqa: E402
from playground import presence  # noqa: E402
from playground.routing import websocket_urlpatterns as playground_sockets  # noqa: E402

sockets: Any = AuthMiddlewareStack(URLRouter(cast("Any", [*playground_sockets, *dashboard_sockets])))
api = ApiHandler()


async def http(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == ALIVE:
        await alive(scope, receive, send)
    else:
        await (api if scope["path"].startswith(PREFIX) else pages)(scope, receive, send)


async def lifespan(_scope: Any, receive: Any, send: Any) -> None:
    """A process looks for generations that others left behind before anybody asks it for anything."""
    await receive()
    presence.watch()
    await send({"type": "lifespan.startup.complete"})


application = ProtocolTypeRouter(
    {
        "http": cast("Any", http),
        "websocket": cast("Any", OwnOrigin(FewSockets(sockets))),
        "lifespan": cast("Any", lifespan),
    }
)
