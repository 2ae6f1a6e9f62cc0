"""What makes two runs one history: everything that decides the speed, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client

from dashboard.measurements.services import record_measurement
from dashboard.models import Configuration, Measurement, MetricStatus
from engine.measuring.measurement import MeasuredDevice, Settings
from engine.sampling import SamplingParams
from tests.dashboard import factories

pytestmark = pytest.mark.django_db

SETTINGS = Settings(16, 32, 5)
TWO_GPUS = (MeasuredDevice("test device", 0.0, 50.0),) * 2


def stored(day: int = 0, **changes: Any) -> Measurement:
    return factories.stored(day=day, settings=replace(SETTINGS, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"sync": "barrier"},
        {"delay": 2},
        {"parallelism": "tp"},
        {"devices": 2},
        {"context": 17},
        {"tokens": 33},
        {"sampling": SamplingParams(temperature=0.7)},
        {"cached_tokens": 8},
        {"streams": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_runs_that_differ_in_a_setting_have_a_history_each(changes: dict[str, Any]) -> None:
    assert stored().configuration_id != stored(**changes).configuration_id


def in_format(weight_format: str, day: int = 0) -> Measurement:
    document = factories.document(day=day)
    document["model"]["weight_format"] = weight_format
    return record_measurement(document=document, source="test.json")[0]


def test_packed_weights_have_a_history_of_their_own() -> None:
    packed = in_format("mxfp4").configuration
    assert packed.weights == "mxfp4" and "mxfp4 weights" in str(packed)
    assert packed != factories.stored(day=1).configuration


@pytest.mark.parametrize("told", ["", "f16", "bf16"])
def test_sixteen_bits_are_one_history_however_a_file_names_them(told: str) -> None:
    assert in_format(told).configuration == factories.stored(day=1).configuration


def test_a_warm_prompt_and_several_streams_say_so() -> None:
    name = str(stored(cached_tokens=8, streams=4).configuration)
    assert name.endswith("8 tokens cached, 4 streams")


def test_keys_and_values_in_fp8_have_a_history_of_their_own_and_older_files_have_fp16() -> None:
    document = factories.document(day=2)
    assert document["settings"].pop("cache") == "fp16"
    old = record_measurement(document=document, source="test.json")[0].configuration
    assert old == factories.stored(day=1).configuration
    assert str(stored(cache="fp8").configuration).endswith("fp8 cache")


def test_two_devices_are_another_configuration_than_one() -> None:
    two = factories.stored(devices=TWO_GPUS, settings=replace(SETTINGS, devices=2, parallelism="dtp"))
    assert two.configuration_id != stored().configuration_id
    assert str(two.configuration).endswith("2 x test device, context 16, 32 tokens, dtp")


def test_repeats_do_not_make_another_configuration() -> None:
    assert stored().configuration_id == stored(1, repeats=50).configuration_id


def test_file_from_before_the_field_was_measured_by_mailboxes_without_delay() -> None:
    old = factories.document()
    for name in ("sync", "delay", "devices", "lanes", "parallelism"):
        old["settings"].pop(name)
    row, _ = factories.record_measurement(document=old, source="old.json")
    assert (row.configuration.sync, row.configuration.delay, row.configuration.devices) == ("mailbox", 0, 1)
    assert row.configuration_id == stored(1).configuration_id


def test_pages_say_what_sets_a_configuration_apart(client: Client) -> None:
    row = stored(sync="barrier", delay=2, parallelism="dtp")
    for path in ("/dashboard/", "/dashboard/runs/", "/dashboard/history/", row.get_absolute_url()):
        page = client.get(path).content.decode()
        assert all(word in page for word in ("barrier", "delay 2", "dtp")), path
    assert client.get(f"/api/runs/{row.pk}").json()["configuration"]["sync"] == "barrier"


def test_migration_parts_runs_that_shared_a_configuration() -> None:
    """As they were stored before a configuration knew the delay and how phases wait."""
    rows = [stored(), stored(1, delay=2), stored(2, delay=2, sync="barrier"), stored(3, delay=2)]
    common = rows[0].configuration
    Measurement.objects.update(configuration=common)
    Configuration.objects.exclude(pk=common.pk).delete()
    renamed_since = {"Standing": "MetricStatus"}
    then = SimpleNamespace(get_model=lambda app, name: apps.get_model(app, renamed_since.get(name, name)))
    import_module("dashboard.migrations.0008_fill_delay_and_sync").fill(
        then, SimpleNamespace(connection=connection)
    )
    for row in rows:
        row.refresh_from_db()
    found = [(row.configuration.delay, row.configuration.sync) for row in rows]
    assert found == [(0, "mailbox"), (2, "mailbox"), (2, "barrier"), (2, "mailbox")]
    assert rows[1].configuration_id == rows[3].configuration_id
    assert Configuration.objects.count() == 3
    assert not MetricStatus.objects.filter(configuration=common).exists()


def test_migration_tells_stored_runs_their_weights_and_how_they_were_checked() -> None:
    packed, cold = in_format("mxfp4"), stored(day=1)
    weak = cold.document
    weak["verified"] = {"against": "own full-sequence pass", "tokens_equal": True, "logit_rel_err": None}
    Measurement.objects.filter(pk=cold.pk).update(document=weak, configuration=packed.configuration)
    Measurement.objects.update(verified_kind="full")
    Configuration.objects.exclude(pk=packed.configuration_id).delete()
    Configuration.objects.update(weights="16-bit")
    fill = import_module("dashboard.migrations.0016_fill_weights_and_kinds").fill
    fill(apps, SimpleNamespace(connection=connection))
    packed.refresh_from_db()
    cold.refresh_from_db()
    assert (packed.configuration.weights, packed.verified_kind) == ("mxfp4", "full")
    assert (cold.configuration.weights, cold.verified_kind) == ("16-bit", "own")
