"""Tells stored sweep runs which kind of device their points kept busy."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db import migrations

from dashboard.models.sweeps import device_of


def fill(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    runs, points = (apps.get_model("dashboard", name) for name in ("SweepRun", "Point"))
    backends: dict[int, set[str]] = defaultdict(set)
    for run, backend in points.objects.using(alias).values_list("run_id", "backend").distinct():
        backends[run].add(backend)
    for run, used in backends.items():
        runs.objects.using(alias).filter(pk=run).update(device=device_of(used))


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0004_regressions_audit_devices")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
