"""The page of one run as values, ready for its template."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median

from dashboard.charts.phases import PhaseChart, SampleStrip, phase_chart, sample_strip
from dashboard.measurements.selectors import Neighbours, neighbours
from dashboard.measurements.variation import Variation, between_runs
from dashboard.models import Measurement, Point, Trace
from dashboard.runs.contexts import ContextChart, context_chart, other_contexts
from dashboard.runs.distribution import Distribution, distribution
from dashboard.runs.environment import Condition, Topic, conditions, topics
from dashboard.sweeps.matrix import sampling_label
from dashboard.sweeps.selectors import failures_like
from engine.measuring.measurement import Measurement as Result


@dataclass(frozen=True, slots=True)
class RunPage:
    row: Measurement
    result: Result
    sampling: str
    phases: PhaseChart | None
    strip: SampleStrip
    unaccounted_us: float | None
    """Mean microseconds between tokens that no phase accounts for; None without phases or raw gaps."""
    gaps: Distribution | None
    contexts: ContextChart | None
    trace: Trace | None
    failures: tuple[Point, ...]
    """Points like this one that failed, the newest first."""
    topics: tuple[Topic, ...]
    conditions: tuple[Condition, ...]
    streams: Streams | None
    around: Neighbours
    change: float | None
    """Relative to the previous measurement of the same configuration."""
    variation: Variation | None


@dataclass(frozen=True, slots=True)
class Streams:
    """Several requests side by side, tokens a second: all of them, and each stream's median."""

    together: float
    each: tuple[float, ...]


def streams_of(result: Result) -> Streams | None:
    """None of a single one."""
    if result.settings.streams == 1:
        return None
    each = tuple(median(speeds) for speeds in zip(*result.samples.stream_tok_s, strict=True))
    return Streams(result.decode.median * result.settings.streams, each)


def run_page(row: Measurement) -> RunPage:
    """Ten queries at most, `row`'s own not counted."""
    result = Result.from_dict(row.document)
    chart = phase_chart(result.phases_us)
    gaps = list(chain.from_iterable(result.samples.itl_us))
    around = neighbours(row)
    return RunPage(
        row=row,
        result=result,
        sampling=sampling_label(result.settings.sampling),
        phases=chart,
        strip=sample_strip(result.decode.samples, result.decode.median, result.decode.ci95),
        unaccounted_us=fmean(gaps) - chart.total if chart and gaps else None,
        gaps=distribution(result.samples.itl_us),
        contexts=context_chart(other_contexts(row), row.pk),
        trace=Trace.objects.defer("content").filter(pk=row.pk).first(),
        failures=tuple(failures_like(row)),
        topics=tuple(topics(result.environment)),
        conditions=tuple(conditions(result.environment)),
        streams=streams_of(result),
        around=around,
        change=row.tok_s / around.previous.tok_s - 1 if around.previous else None,
        variation=between_runs(row),
    )
