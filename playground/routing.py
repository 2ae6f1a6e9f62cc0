"""The playground's websocket."""

from __future__ import annotations

from django.urls import path

from playground.consumers import PlaygroundConsumer

websocket_urlpatterns = [
    path("ws/playground/", PlaygroundConsumer.as_asgi())  # type: ignore[arg-type]  # the stubs know views only
]
