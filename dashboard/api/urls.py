"""Paths of the dashboard's API."""

from __future__ import annotations

from django.urls import path

from dashboard.api.views import api, no_such_path

urlpatterns = [path("", api.urls), path("<path:path>", no_such_path)]
