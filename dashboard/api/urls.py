"""Paths of the dashboard's API."""

from __future__ import annotations

from django.urls import path

from dashboard.api.views import api, unknown

urlpatterns = [path("", api.urls), path("<path:path>", unknown)]
