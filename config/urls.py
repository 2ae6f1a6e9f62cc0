"""Which app answers which path."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from config.metrics import metrics

urlpatterns = [
    path("admin/", admin.site.urls),
    path("dashboard/", include("dashboard.urls")),
    path("api/", include("dashboard.api.urls")),
    path("metrics", metrics, name="metrics"),
    path("", include("playground.urls")),
]
