"""Fills weights, cached tokens, streams and kinds of verification of what is stored, from the documents.

Measurements that shared a configuration and differ in one of the first three get a configuration each.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db import migrations

SAID = (
    "document__model__weight_format",
    "document__settings__cached_tokens",
    "document__settings__streams",
)
UNPACKED = {None: "16-bit", "": "16-bit", "f16": "16-bit", "bf16": "16-bit", "f32": "32-bit"}
Manner = tuple[str, int, int]


def fill(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    configurations, measurements, standings = (
        apps.get_model("dashboard", name).objects.using(alias)
        for name in ("Configuration", "Measurement", "MetricStatus")
    )
    _fill_kinds(measurements)
    members: dict[int, dict[Manner, list[int]]] = defaultdict(lambda: defaultdict(list))
    for pk, configuration, *said in measurements.order_by("pk").values_list("pk", "configuration", *SAID):
        members[configuration][_manner(*said)].append(pk)
    for key, manners in members.items():
        first, *others = manners
        weights, cached, streams = first
        configurations.filter(pk=key).update(weights=weights, cached_tokens=cached, streams=streams)
        for manner in others:
            twin = _twin(configurations.get(pk=key), manner, alias)
            measurements.filter(pk__in=manners[manner]).update(configuration=twin)
        if others:
            standings.filter(configuration=key).delete()  # they are judged anew after the migration


def _fill_kinds(measurements: Any) -> None:
    """Schema 1 told no kind: its weaker check had a name of its own."""
    kinds: dict[str, list[int]] = {"own": [], "partial": []}
    rows = measurements.order_by("pk").values_list(
        "pk", "document__verified__kind", "document__verified__against"
    )
    for pk, kind, against in rows:
        if kind is None and str(against).startswith("own full-sequence pass"):
            kind = "own"
        if kind in kinds:
            kinds[kind].append(pk)
    for kind, keys in kinds.items():
        measurements.filter(pk__in=keys).update(verified_kind=kind)


def _manner(weights: str | None, cached: int | None, streams: int | None) -> Manner:
    return UNPACKED.get(weights, weights or ""), cached or 0, streams or 1


def _twin(configuration: Any, manner: Manner, alias: str) -> Any:
    configuration.pk = None
    configuration.weights, configuration.cached_tokens, configuration.streams = manner
    configuration.save(force_insert=True, using=alias)
    return configuration


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0015_configurations_tell_more")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
