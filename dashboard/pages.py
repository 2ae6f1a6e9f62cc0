"""What one page shows, as values: read from rows and documents, ready for a template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from dashboard.charts import PhaseChart, SampleStrip, phase_chart, sample_strip
from dashboard.matrix import sampling_label
from dashboard.models import Configuration, Measurement
from dashboard.selectors import Neighbours, Sample, Series, neighbours
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


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as ("gpu.0.name", "H200") pairs, in order."""
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping) and inner:
            yield from flatten(inner, f"{name}.")
        elif isinstance(inner, list) and inner and all(isinstance(i, Mapping) for i in inner):
            yield from flatten({str(i): v for i, v in enumerate(inner)}, f"{name}.")
        else:
            yield name, _plain(inner)


def _plain(value: object) -> str:
    match value:
        case None | "" | [] | {}:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(_plain(v) for v in value)
        case _:
            return str(value)


TABLE_ROWS = 200
"""More rows than this help nobody on a page; the exports have them all."""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    configuration: Configuration
    sample: Sample


def history_table(series: Sequence[Series]) -> list[HistoryRow]:
    """The newest samples of each series, newest first, TABLE_ROWS in all at most."""
    most = TABLE_ROWS // max(1, len(series))
    return [HistoryRow(one.configuration, s) for one in series for s in reversed(one.samples[-most:])]


def chart_data(series: Sequence[Series], unit: str) -> dict[str, Any]:
    """History for the script: times in seconds since 1970, one entry a configuration."""
    return {
        "unit": unit,
        "series": [
            {
                "label": str(s.configuration),
                "samples": [
                    {**asdict(sample), "created": sample.created.timestamp()} for sample in s.samples
                ],
            }
            for s in series
        ],
    }
