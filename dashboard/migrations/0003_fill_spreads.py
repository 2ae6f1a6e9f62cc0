"""Gives the measurements that are already stored their intervals, from the raw samples in their documents."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from dashboard.measurements.ingest import intervals_of
from engine.measuring.measurement import Measurement

read = Measurement.from_dict


def fill(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    stored, spreads = (apps.get_model("dashboard", name) for name in ("Measurement", "Spread"))
    without = stored.objects.using(alias).filter(spread__isnull=True).values_list("pk", "document")
    known = {field.name for field in spreads._meta.get_fields()}
    rows = (
        spreads(pk=key, **{k: v for k, v in intervals_of(read(document)).items() if k in known})
        for key, document in without
    )
    spreads.objects.using(alias).bulk_create(list(rows), batch_size=500)


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0002_history_peers_traces")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
