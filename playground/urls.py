"""Paths of the playground, the OpenAI-compatible API and the probes."""

from __future__ import annotations

from django.urls import path

from playground import health, views
from playground.api import views as api

app_name = "playground"
urlpatterns = [
    path("", views.index, name="index"),
    path("v1/models", api.models, name="models"),
    path("v1/models/<path:name>", api.model, name="model"),
    path("v1/completions", api.completions, name="completions"),
    path("v1/chat/completions", api.chat_completions, name="chat_completions"),
    path("v1/<path:unknown>", api.unknown, name="unknown"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.prometheus, name="metrics"),
]
