"""Storing measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from dashboard.measurements.configurations import configuration_of
from dashboard.measurements.ingest import columns_of, digest_of, intervals_of
from dashboard.measurements.plausibility import check_consistent
from dashboard.models import Configuration, Measurement, MetricInterval, Point
from engine.errors import MeasurementError
from engine.measuring.measurement import Measurement as Result


def record_measurement(
    *, document: Mapping[str, Any], source: str, point: Point | None = None
) -> tuple[Measurement, bool]:
    """Stores a document once, as it stands; the second value says whether it was new.

    Raises MeasurementError if it is not one, contradicts its own samples, or holds what the database cannot
    keep.
    """
    result = Result.from_dict(document)
    digest = digest_of(document)
    key = configuration_of(result)
    figures = columns_of(result)
    check_consistent(result, figures["created"], timezone.now())
    columns = {**figures, "document": document, "source": source[:200]}
    spread = intervals_of(result)
    try:
        Configuration(**key).clean_fields()
        Measurement(**columns).clean_fields(exclude=["configuration", "digest", "point", "document"])
    except ValidationError as error:
        raise MeasurementError("; ".join(_problems(error))) from error
    with transaction.atomic():
        configuration, _ = Configuration.objects.get_or_create(**key)
        stored, new = Measurement.objects.get_or_create(
            digest=digest, defaults={**columns, "configuration": configuration, "point": point}
        )
        if new:
            MetricInterval.objects.create(measurement=stored, **spread)
    return stored, new


def _problems(error: ValidationError) -> list[str]:
    return [f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items()]
