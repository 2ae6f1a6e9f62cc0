"""Paths of the playground, the OpenAI-compatible API and the probes."""

from __future__ import annotations

from django.urls import path, register_converter

from playground import health, race, sandbox, sharing_views, views
from playground.api import views as api
from playground.sharing import ShareId

register_converter(ShareId, "share")

app_name = "playground"
urlpatterns = [
    path("v1/completions", api.completions, name="completions"),  # first: a client waits for these
    path("v1/chat/completions", api.chat_completions, name="chat_completions"),
    path("", views.index, name="index"),
    path("sandbox/", sandbox.frame, name="sandbox"),
    path("race/", race.race, name="race"),
    path("g/", sharing_views.shared_pages, name="shared_pages"),
    path("g/erase/", sharing_views.erase, name="erase"),
    path("g/<share:share>/", sharing_views.shared, name="shared"),
    path("g/<share:share>/revoke/", sharing_views.revoke, name="revoke"),
    path("g/<share:share>/card.png", sharing_views.card, name="card"),
    path("g/<share:share>/<int:place>.txt", sharing_views.output, name="shared_output"),
    path("v1/models", api.models, name="models"),
    path("v1/models/<path:name>", api.model, name="model"),
    path("tokenize", api.tokenize, name="tokenize"),
    path("v1/<path:unknown>", api.not_found, name="unknown"),
    path("readyz", health.readyz, name="readyz"),
    path("health", health.readyz, name="health"),  # where clients of inference servers look
]
