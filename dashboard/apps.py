"""The benchmark dashboard: sweeps, measurements, history."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from dashboard.accounts import log  # noqa: F401  # its receiver

        post_migrate.connect(_fill_new_database, sender=self)


def _fill_new_database(using: str, **_: Any) -> None:
    """The preset sweeps, so that an operator's first page is not empty; the reaper's schedule; the groups
    of rights; and a verdict on what was measured before there was a rule."""
    from dashboard.accounts import groups
    from dashboard.regressions.services import judge_missing
    from dashboard.sweeps import definitions

    definitions.load_presets(using=using)
    definitions.ensure_notices(using=using)
    groups.ensure(using=using)
    judge_missing(using=using)
