"""A sweep run has no owner any more, and Celery is not told of it: collectors find it by its state."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models


def rename_reaper(apps: Any, _schema_editor: Any) -> None:
    """The minutely task repeats lost notices and nothing else; what an operator changed of it stays."""
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task="dashboard.reap").update(
        task="dashboard.repeat_notices", name="dashboard: repeat lost notices"
    )


class Migration(migrations.Migration):
    dependencies = [
        ("dashboard", "0013_regressions_have_causes_and_ends"),
        ("django_celery_beat", "0001_initial"),
    ]

    operations = [
        migrations.RunPython(rename_reaper, migrations.RunPython.noop),
        migrations.RemoveConstraint("sweeprun", "sweeprun_running_has_a_heartbeat"),
        migrations.RemoveIndex("sweeprun", "sweeprun_reaper"),
        migrations.RemoveField("sweeprun", "enqueued"),
        migrations.RemoveField("sweeprun", "owner"),
        migrations.RemoveField("sweeprun", "resumed"),
        migrations.AddIndex("sweeprun", models.Index(fields=["state", "created"], name="sweeprun_active")),
        migrations.AddConstraint(
            "sweeprun",
            models.CheckConstraint(
                condition=~models.Q(state="running") | models.Q(heartbeat__isnull=False),
                name="sweeprun_running_has_a_heartbeat",
            ),
        ),
    ]
