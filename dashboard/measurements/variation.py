"""How much a figure varies from run to run, which the repeats inside one run do not show."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.models import Measurement
from engine.measuring.change_points import noise
from engine.measuring.statistics import LEAST_SAMPLES, median

RUNS = 30


@dataclass(frozen=True, slots=True)
class Variation:
    """Standard deviation of the decode speed between `runs` runs, as a share of their median."""

    share: float
    runs: int


def between_runs(of: Measurement) -> Variation | None:
    """Of the last RUNS verified runs of its configuration up to it; None with fewer than LEAST_SAMPLES.

    Judged by the differences of neighbours, so that a step of the level hardly counts. One query.
    """
    rows = Measurement.objects.filter(
        configuration=of.configuration_id, verified=True, created__lte=of.created
    )
    speeds = list(rows.order_by("-created", "-pk").values_list("tok_s", flat=True)[:RUNS])
    if len(speeds) < LEAST_SAMPLES:
        return None
    return Variation(noise(speeds) / median(speeds), len(speeds))
