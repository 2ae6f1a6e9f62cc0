"""Tells the configurations that are already stored their delay and how their phases wait, from the documents.

Measurements that shared a configuration and differ in one of the two get a configuration each.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db import migrations

MANNER = ("document__settings__delay", "document__settings__sync")
Manner = tuple[int, str]


def fill(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    configurations, measurements, standings = (
        apps.get_model("dashboard", name).objects.using(alias)
        for name in ("Configuration", "Measurement", "Standing")
    )
    found: dict[int, set[Manner]] = defaultdict(set)
    for key, *said in measurements.order_by().values_list("configuration", *MANNER).distinct():
        found[key].add(_manner(*said))
    for key, manners in found.items():
        first, *others = sorted(manners)
        configurations.filter(pk=key).update(delay=first[0], sync=first[1])
        if not others:
            continue
        for manner, moved in _by_manner(measurements.filter(configuration=key)).items():
            if manner != first:
                twin = _twin(configurations.get(pk=key), manner, alias)
                measurements.filter(pk__in=moved).update(configuration=twin)
        standings.filter(configuration=key).delete()  # they are judged anew after the migration


def _manner(delay: int | None, sync: str | None) -> Manner:
    return delay or 0, sync or "mailbox"


def _by_manner(rows: Any) -> dict[Manner, list[int]]:
    keys: dict[Manner, list[int]] = defaultdict(list)
    for pk, *said in rows.values_list("pk", *MANNER):
        keys[_manner(*said)].append(pk)
    return keys


def _twin(configuration: Any, manner: Manner, alias: str) -> Any:
    configuration.pk = None
    configuration.delay, configuration.sync = manner
    configuration.save(force_insert=True, using=alias)
    return configuration


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0007_configurations_tell_delay_and_sync")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
