"""Paths of the dashboard's API."""

from __future__ import annotations

from django.urls import path

from dashboard import url_keys  # noqa: F401 - registers <key:pk>
from dashboard.api import views

app_name = "dashboard_api"
urlpatterns = [
    path("runs", views.runs, name="runs"),
    path("runs/<key:pk>", views.run, name="run"),
    path("configurations", views.configurations, name="configurations"),
    path("series", views.series, name="series"),
    path("comparisons", views.comparisons, name="comparisons"),
    path("regressions", views.regressions, name="regressions"),
    path("badge.svg", views.badge, name="badge"),
    path("<path:path>", views.unknown, name="unknown"),
]
