"""Refuses a document whose summary does not follow from what it was summed up from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import fsum

from engine.errors import MeasurementError
from engine.measuring.measurement import Measurement
from engine.measuring.roofline import mbu
from engine.measuring.statistics import median

TOLERANCE = 1e-3
"""Relative: files round their figures."""
CLOCK_SKEW = timedelta(days=1)
"""A machine's clock may be ahead of this one's, or know no time zone."""


def check_consistent(result: Measurement, created: datetime, now: datetime) -> None:
    """Raises MeasurementError naming the first figure that its own samples contradict."""
    if created > now + CLOCK_SKEW:
        raise MeasurementError(
            f"created is {created.isoformat()}, which is in the future; check the clock of the machine"
        )
    low, high = result.decode.ci95
    if not low <= result.decode.median <= high:
        raise MeasurementError(
            f"decode.tok_s.median is {result.decode.median:g}, outside its own interval, {low:g} to {high:g}"
        )
    for name, said, follows, why in (*_medians(result), *_means(result), *_utilisations(result)):
        if abs(said - follows) > TOLERANCE * abs(follows):
            raise MeasurementError(f"{name} is {said:g}; {why} {follows:g}")


def _medians(result: Measurement) -> Iterator[tuple[str, float, float, str]]:
    gaps = [gap for repeat in result.samples.itl_us for gap in repeat]
    for name, said, samples in (
        ("decode.tok_s.median", result.decode.median, result.decode.samples),
        ("ttft_ms.p50", result.ttft_ms.p50, result.samples.ttft_ms),
        ("prefill.tok_s", result.prefill.tok_s, result.samples.prefill_tok_s),
        ("decode.itl_us.p50", result.itl_us.p50, gaps),
    ):
        if samples:
            yield name, said, _median(name, samples), "the median of its samples is"


def _means(result: Measurement) -> Iterator[tuple[str, float, float, str]]:
    """A repeat's speed is the mean of its streams'."""
    for said, each in zip(result.decode.samples, result.samples.stream_tok_s, strict=False):
        yield "a sample of decode.tok_s", said, fsum(each) / len(each), "the mean of its streams is"


def _median(name: str, samples: tuple[float, ...] | list[float]) -> float:
    try:
        return median(samples)
    except ValueError as error:
        raise MeasurementError(f"a raw sample of {name} cannot be true: {error}") from error


def _utilisations(result: Measurement) -> Iterator[tuple[str, float, float, str]]:
    """MBU = bytes a step x steps a second / bandwidth of all devices, where each one's is known."""
    why = "bytes a step x speed / bandwidth is"
    for which, said in (("datasheet", result.mbu.datasheet), ("measured", result.mbu.measured)):
        each = [getattr(device, f"{which}_gbs") for device in result.devices]
        if said is not None and each and all(gbs > 0 for gbs in each):
            step = result.model.bytes_per_token.of_step(result.settings.streams)
            yield f"mbu.{which}", said, mbu(step, result.decode.median, fsum(each)), why
