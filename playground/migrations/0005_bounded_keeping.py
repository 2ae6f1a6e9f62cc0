"""Generations know their size, prompts are written unescaped, and a shared page keeps its generation."""

from typing import Any

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Cast, Length

import playground.models


def fill_sizes(apps: Any, _schema_editor: Any) -> None:
    """Characters for bytes: near enough for rows that will be gone in GENERATION_DAYS."""
    text: Any = models.TextField()
    size = 500 + Length("text") + Length(Cast("request", text)) + Length(Cast("environment", text))
    apps.get_model("playground", "Generation").objects.update(size=size)


class Migration(migrations.Migration):
    dependencies = [("playground", "0004_api_keys")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="size",
            field=models.PositiveIntegerField(default=0, editable=False),
        ),
        migrations.AlterField(
            model_name="generation",
            name="request",
            field=models.JSONField(encoder=playground.models.PlainJson),
        ),
        migrations.AlterField(
            model_name="lane",
            name="generation",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="lanes",
                to="playground.generation",
            ),
        ),
        migrations.RunPython(fill_sizes, migrations.RunPython.noop),
    ]
