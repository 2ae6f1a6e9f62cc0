"""The 90th percentile of the time to first token, with its interval, from the raw samples that are stored."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from dashboard.measurements.metrics import METRICS
from engine.measuring.measurement import Measurement

read = Measurement.from_dict


def fill(apps: Any, schema_editor: Any) -> None:
    rows = apps.get_model("dashboard", "Measurement").objects.using(schema_editor.connection.alias)
    for key, document in rows.values_list("pk", "document"):
        if (value := METRICS["ttft_p90"].of(read(document))) is not None:
            rows.filter(pk=key).update(ttft_p90=value)


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0010_plain_names")]
    operations = [
        migrations.AddField("measurement", "ttft_p90", models.FloatField(blank=True, null=True)),
        migrations.AddField("metricinterval", "ttft_p90_high", models.FloatField(blank=True, null=True)),
        migrations.AddField("metricinterval", "ttft_p90_low", models.FloatField(blank=True, null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
