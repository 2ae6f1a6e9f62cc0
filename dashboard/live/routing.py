"""The dashboard's websocket: hints that something changed, never the data itself."""

from __future__ import annotations

from django.urls import path

from dashboard.live.consumers import HintsConsumer

websocket_urlpatterns = [
    path("ws/dashboard/", HintsConsumer.as_asgi())  # type: ignore[arg-type]  # the stubs know views only
]
