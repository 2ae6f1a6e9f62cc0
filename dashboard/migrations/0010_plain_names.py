"""Models named by what they hold: a metric's status and its interval."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0009_points_may_choose_sync")]
    operations = [
        migrations.RenameModel("Standing", "MetricStatus"),
        migrations.RenameModel("Spread", "MetricInterval"),
    ]
