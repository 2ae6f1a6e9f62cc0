"""What a peer's speed is of: decode, as it was until now, or prompts."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0017_points_may_have_streams")]
    operations = [
        migrations.AddField(
            "peer",
            "measures",
            models.CharField(
                choices=[("decode", "Decode"), ("prefill", "Prefill")],
                db_default="decode",
                default="decode",
                max_length=20,
            ),
        ),
    ]
