"""One table says what a measurement's figures are; what derives from it agrees with it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.compare.figures import Compared, compare
from dashboard.measurements.exports import RUN_COLUMNS
from dashboard.measurements.metrics import LISTED, METRICS
from dashboard.models import Measurement
from engine.measuring.measurement import Samples
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
FIRST_TOKENS = tuple(10.0 + 0.1 * n for n in range(40))


def with_first_tokens(count: int) -> Measurement:
    return factories.stored(samples=Samples(ttft_ms=FIRST_TOKENS[:count]))


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_a_column_a_series_an_export_and_a_place_in_the_api(
    client: Client, name: str
) -> None:
    metric = METRICS[name]
    row = factories.stored()
    assert hasattr(row, metric.column) and metric.csv in RUN_COLUMNS
    answer = client.get("/api/series", {"configuration": row.configuration_id, "metric": name})
    assert answer.status_code == 200 and answer.json()["unit"] == metric.unit
    place: Any = client.get(f"/api/runs/{row.pk}").json()
    for part in metric.api:
        place = place[part]
    assert place == getattr(row, metric.column)


def test_list_of_runs_has_a_column_for_each_listed_metric(client: Client) -> None:
    factories.stored()
    page = client.get("/dashboard/runs/").content.decode()
    assert all(metric.short in page for metric in LISTED)


def test_ninetieth_percentile_of_the_first_token_comes_from_the_raw_samples() -> None:
    row = with_first_tokens(40)
    assert row.ttft_p90 == pytest.approx(13.51)
    assert row.spread.ttft_p90_low < row.ttft_p90 < row.spread.ttft_p90_high


def test_percentile_that_the_samples_cannot_bound_is_no_figure() -> None:
    row = with_first_tokens(35)
    assert row.ttft_p90 is None and row.spread.ttft_p90_low is None


def test_comparison_has_a_row_of_it() -> None:
    result = factories.result(samples=Samples(ttft_ms=FIRST_TOKENS))
    rows = compare([Compared(result, "0" * 64), Compared(result, "0" * 64)])
    assert "Time to first token, p90" in [row.metric.title for row in rows]
