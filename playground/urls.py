"""Paths of the playground."""

from __future__ import annotations

from django.urls import URLPattern

app_name = "playground"
urlpatterns: list[URLPattern] = []
