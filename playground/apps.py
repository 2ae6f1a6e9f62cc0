"""The playground as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class PlaygroundConfig(AppConfig):
    name = "playground"
    default_auto_field = "django.db.models.BigAutoField"
