"""Gives the measurements that are stored the intervals that draw whole repeats again."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from dashboard.measurements.ingest import intervals_of
from engine.measuring.measurement import Measurement


def refill(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    stored, intervals = (apps.get_model("dashboard", name) for name in ("Measurement", "MetricInterval"))
    known = {field.name for field in intervals._meta.get_fields()}  # later versions have more columns
    for key, document in stored.objects.using(alias).values_list("pk", "document").iterator():
        columns = intervals_of(Measurement.from_dict(document))
        columns = {name: value for name, value in columns.items() if name in known}
        intervals.objects.using(alias).filter(measurement=key).update(**columns)


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0010_plain_names")]
    operations = [migrations.RunPython(refill, migrations.RunPython.noop, elidable=True)]
