"""A document whose summary contradicts its own samples is refused, and says which figure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dashboard.measurements.services import record_measurement
from dashboard.models import Measurement
from engine.errors import MeasurementError
from engine.measuring.measurement import Settings
from tests.dashboard import factories

pytestmark = pytest.mark.django_db


def refuse(document: dict[str, Any], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        record_measurement(document=document, source="x")
    assert not Measurement.objects.exists()


def test_median_that_is_not_the_samples_median_is_refused() -> None:
    document = factories.document()
    document["decode"]["tok_s"]["median"] = 100.5
    refuse(document, "decode.tok_s.median is 100.5; the median of its samples is 100")


def test_median_outside_its_interval_is_refused() -> None:
    document = factories.document()
    document["decode"]["tok_s"]["ci95"] = [240.0, 257.0]
    refuse(document, "decode.tok_s.median is 100, outside its own interval, 240 to 257")


@pytest.mark.parametrize(
    ("place", "samples", "figure"),
    [
        ("ttft_ms", [30.0] * 5, "ttft_ms.p50 is 12.5"),
        ("prefill_tok_s", [99.0] * 5, "prefill.tok_s is 1500"),
        ("itl_us", [[5.0, 6.0]] * 5, "decode.itl_us.p50 is 10000"),
    ],
)
def test_latency_that_its_samples_contradict_is_refused(place: str, samples: list[Any], figure: str) -> None:
    document = factories.document()
    document["samples"][place] = samples
    refuse(document, figure)


def test_a_speed_that_is_not_the_mean_of_its_streams_is_refused() -> None:
    document = factories.document(settings=Settings(16, 32, 5, streams=2))
    document["samples"]["stream_tok_s"] = [[10.0, 20.0]] * 5
    refuse(document, "the mean of its streams is 15")


def test_mbu_that_does_not_follow_from_speed_and_bandwidth_is_refused() -> None:
    document = factories.document()
    document["mbu"]["measured"] = 0.8
    refuse(document, "mbu.measured is 0.8; bytes a step x speed / bandwidth is 0.4")


def test_measurement_from_the_future_is_refused() -> None:
    document = factories.document()
    document["created"] = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    refuse(document, "which is in the future; check the clock")


def test_clock_that_is_some_hours_ahead_is_forgiven() -> None:
    document = factories.document()
    document["created"] = (datetime.now(UTC) + timedelta(hours=12)).isoformat()
    record_measurement(document=document, source="x")
    assert Measurement.objects.exists()
