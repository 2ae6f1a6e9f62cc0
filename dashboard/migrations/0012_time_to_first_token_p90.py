"""The 90th percentile of the time to first token, with its interval, from the raw samples that are stored."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from dashboard.measurements.ingest import intervals_of
from dashboard.measurements.metrics import METRICS
from engine.measuring.measurement import Measurement


def fill(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    stored, intervals = (apps.get_model("dashboard", name) for name in ("Measurement", "MetricInterval"))
    rows = stored.objects.using(alias)
    for key, document in rows.values_list("pk", "document").iterator():
        result = Measurement.from_dict(document)
        value = METRICS["ttft_p90"].of(result)
        if value is not None:
            bounds = {k: v for k, v in intervals_of(result).items() if k.startswith("ttft_p90")}
            rows.filter(pk=key).update(ttft_p90=value)
            intervals.objects.using(alias).filter(measurement=key).update(**bounds)


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0011_refill_intervals")]
    operations = [
        migrations.AddField("measurement", "ttft_p90", models.FloatField(blank=True, null=True)),
        migrations.AddField("metricinterval", "ttft_p90_high", models.FloatField(blank=True, null=True)),
        migrations.AddField("metricinterval", "ttft_p90_low", models.FloatField(blank=True, null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
