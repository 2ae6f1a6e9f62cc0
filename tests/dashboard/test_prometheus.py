"""What Prometheus scrapes of the dashboard."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboard.measurements.configurations import values_of
from dashboard.prometheus import exposition
from dashboard.sweeps import lifecycle
from engine.measuring.measurement import Settings
from tests.dashboard import factories
from tests.dashboard.regressions.test_services import GOOD, history

pytestmark = pytest.mark.django_db


def samples() -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(exposition().decode())
        for sample in family.samples
    }


def test_sweeps_are_counted_by_device_and_state() -> None:
    first = factories.run_of(factories.sweep("a"))
    factories.run_of(factories.sweep("b", backend=["cuda", "cpu"]))
    lifecycle.begin_run(run_id=first.pk)
    found = samples()
    assert found["monolane_sweep_runs", "cpu", "running"] == 1
    assert found["monolane_sweep_runs", "cpu", "queued"] == 1
    assert found["monolane_sweep_runs", "gpu", "queued"] == 1
    assert 0 <= found["monolane_sweep_queue_age_seconds", "gpu"] < 60


def test_newest_verified_speed_of_each_configuration_is_a_gauge() -> None:
    factories.stored(tok_s=90, day=0)
    row = factories.stored(tok_s=100, day=1)
    said = {"configuration": str(row.configuration_id), **values_of(row.configuration)}
    labels = tuple(str(said[name]) for name in sorted(said))
    found = samples()
    assert found["monolane_benchmark_tokens_per_second", *labels] == 100
    assert found["monolane_benchmark_mbu_ratio", *labels] == 0.4
    assert found["monolane_benchmark_measured_timestamp_seconds", *labels] == row.created.timestamp()


def test_configurations_that_differ_only_in_how_they_wait_have_different_labels() -> None:
    for sync in ("mailbox", "barrier"):
        factories.stored(settings=Settings(16, 32, 5, sync=sync))
    speeds = [key for key in samples() if key[0] == "monolane_benchmark_tokens_per_second"]
    assert ["barrier" in key for key in speeds].count(True) == 1 and len(speeds) == 2


def test_regressions_are_counted_by_fate() -> None:
    history(*GOOD, 80, 80)
    found = samples()
    assert found["monolane_regressions", "open"] == 1
    assert found["monolane_regressions", "recovered"] == 0


def test_a_scrape_takes_a_fixed_number_of_queries(django_assert_max_num_queries: Any) -> None:
    for context in range(1, 30):
        factories.stored(context=context)
    with django_assert_max_num_queries(4):
        exposition()


@pytest.mark.slow
async def test_page_of_metrics_has_both_apps_parts(async_client: Any, transactional_db: None) -> None:
    text = (await async_client.get("/metrics")).content.decode()
    assert "monolane_generations_total" in text
    assert "monolane_regressions" in text
