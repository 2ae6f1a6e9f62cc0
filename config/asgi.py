"""The ASGI application: HTTP through Django, websockets through Channels."""

from __future__ import annotations

import os
from typing import Any, cast

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
http = get_asgi_application()

# The consumers import models, so the apps must be ready before.
from config.sockets import FewSockets, OwnOrigin  # noqa: E402
from dashboard.live.routing import websocket_urlpatterns as dashboard_sockets  # noqa: E402
from playground.routing import websocket_urlpatterns as playground_sockets  # noqa: E402

sockets: Any = AuthMiddlewareStack(URLRouter(cast("Any", [*playground_sockets, *dashboard_sockets])))
application = ProtocolTypeRouter({"http": http, "websocket": cast("Any", OwnOrigin(FewSockets(sockets)))})
