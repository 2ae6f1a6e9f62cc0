"""What one page shows, as values: read from rows and documents, ready for a template."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from dashboard.charts import PhaseChart, SampleStrip, phase_chart, sample_strip
from dashboard.facts import flatten
from dashboard.matrix import sampling_label
from dashboard.models import Measurement
from dashboard.selectors import Neighbours, neighbours
from engine.measurement import Measurement as Result


@dataclass(frozen=True, slots=True)
class RunPage:
    row: Measurement
    result: Result
    sampling: str
    phases: PhaseChart | None
    strip: SampleStrip
    unaccounted_us: float | None
    """Mean microseconds between tokens that no phase accounts for; None without phases or raw gaps."""
    environment: tuple[tuple[str, str], ...]
    around: Neighbours
    change: float | None
    """Relative to the previous measurement of the same configuration."""


def run_page(row: Measurement) -> RunPage:
    result = Result.from_dict(row.document)
    chart = phase_chart(result.phases_us)
    gaps = [gap for repeat in result.samples.itl_us for gap in repeat]
    around = neighbours(row)
    return RunPage(
        row=row,
        result=result,
        sampling=sampling_label(result.settings.sampling),
        phases=chart,
        strip=sample_strip(result.decode.samples, result.decode.median, result.decode.ci95),
        unaccounted_us=fmean(gaps) - chart.total if chart and gaps else None,
        environment=tuple(flatten(result.environment)),
        around=around,
        change=row.tok_s / around.previous.tok_s - 1 if around.previous else None,
    )
