"""The one table of metrics: what a measurement says, where it stands in the document and in the columns.

Import, exports, API, history, comparison, regressions, lists and the sweep command derive from it. A new
metric is a row here, its columns in `models/measurements.py`, and a line in docs/dashboard.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from django.db.models import F, FloatField, Value
from django.db.models.expressions import Combinable

from engine.measuring.measurement import Measurement as Result
from engine.measuring.statistics import quantile

Style = Literal["speed", "percent", "millis", "micros"]
"""The filter of `templatetags.figures` that writes a value of the column."""
Repeats = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a measurement: the `q`-quantile of raw samples, or what follows from one.

    `column` is the column of `Measurement` that holds it, and its name in addresses, in the API's parameters
    and in the rows of regressions. `unit` is the unit of pages and charts: the column's times `factor`.
    """

    column: str
    title: str
    short: str
    """In a table's head."""
    unit: str
    style: Style
    of: Callable[[Result], float | None]
    repeats: Callable[[Result], Repeats]
    """The raw samples in the column's unit, those of one repeat together; none if none were kept."""
    api: tuple[str, ...]
    """Its place in a run of the API."""
    csv: str
    q: float = 0.5
    factor: float = 1.0
    more_is_better: bool = True
    interval: str = ""
    """NAME of its columns NAME_low and NAME_high of `MetricInterval`; empty if it has none there."""
    low: str | Combinable | None = None
    high: str | Combinable | None = None
    """Its 95 % interval where that does not stand in `MetricInterval`; neither: no interval is kept."""
    n: str = "samples"
    """The column that says how many samples it rests on."""
    watched: bool = False
    """It is judged, and a regression of it opens."""
    compared: bool = True
    """It is a row of a comparison."""
    listed: bool = False
    """It is a column in lists of runs and in the table of the sweep command."""

    def samples(self, result: Result) -> list[float]:
        """The raw samples of all repeats."""
        return list(chain.from_iterable(self.repeats(result)))

    def columns(self) -> dict[str, Any]:
        """Value, interval and n in `unit`, for `annotate`, under names that no field has."""
        low, high = (
            (f"spread__{self.interval}_low", f"spread__{self.interval}_high")
            if self.interval
            else (self.low, self.high)
        )
        pairs = {"the_value": self.column, "the_low": low, "the_high": high}
        return {name: self._scale(column) for name, column in pairs.items()} | {"the_n": F(self.n)}

    def _scale(self, column: str | Combinable | None) -> Any:
        if column is None:
            return Value(None, output_field=FloatField())
        found = F(column) if isinstance(column, str) else column
        return found if self.factor == 1.0 else found * Value(self.factor, output_field=FloatField())


def _one_each(samples: Sequence[float]) -> list[tuple[float]]:
    """Of a figure that each repeat has once."""
    return [(sample,) for sample in samples]


def _mbu(which: Literal["measured", "datasheet"], compared: bool) -> Metric:
    """MBU is the speed times a constant of the run, so its interval and samples are the speed's, scaled."""

    def of(result: Result) -> float | None:
        return result.mbu.measured if which == "measured" else result.mbu.datasheet

    def repeats(result: Result) -> Repeats:
        mbu = of(result)
        return (
            [] if mbu is None else _one_each([s * mbu / result.decode.median for s in result.decode.samples])
        )

    column = f"mbu_{which}"
    per_speed = F(column) / F("tok_s")
    return Metric(
        column, f"MBU, of {which} bandwidth", f"MBU of {which}", "%", "percent", of, repeats,
        ("mbu", which), column, factor=100.0, low=F("ci_low") * per_speed, high=F("ci_high") * per_speed,
        listed=True, compared=compared,
    )  # fmt: skip


def _inter_token(name: str, q: float) -> Metric:
    return Metric(
        f"itl_{name}", f"Inter-token latency, {name}", f"ITL {name}", "µs", "micros",
        lambda r: getattr(r.itl_us, name), lambda r: r.samples.itl_us, ("itl_us", name), f"itl_{name}_us",
        q=q, more_is_better=False, n="spread__itl_n",
    )  # fmt: skip


_TABLE = (
    Metric(
        "tok_s", "Decode speed", "Decode, tok/s", "tok/s", "speed",
        lambda r: r.decode.median, lambda r: _one_each(r.decode.samples), ("tok_s", "median"), "tok_s",
        low="ci_low", high="ci_high", watched=True, listed=True,
    ),
    _mbu("measured", compared=True),
    _mbu("datasheet", compared=False),
    Metric(
        "ttft_ms", "Time to first token, p50", "TTFT p50", "ms", "millis",
        lambda r: r.ttft_ms.p50, lambda r: _one_each(r.samples.ttft_ms), ("ttft_ms",), "ttft_ms",
        more_is_better=False, interval="ttft", n="spread__ttft_n", watched=True, listed=True,
    ),
    Metric(
        "ttft_p90", "Time to first token, p90", "TTFT p90", "ms", "millis",
        lambda r: quantile(r.samples.ttft_ms, 0.9) if r.samples.ttft_ms else None,
        lambda r: _one_each(r.samples.ttft_ms), ("ttft_p90_ms",), "ttft_p90_ms",
        q=0.9, more_is_better=False, interval="ttft_p90", n="spread__ttft_n",
    ),
    replace(_inter_token("p50", 0.5), interval="itl_p50", listed=True),
    replace(_inter_token("p90", 0.9), compared=False),
    replace(_inter_token("p99", 0.99), interval="itl_p99", watched=True, listed=True),
    Metric(
        "prefill_tok_s", "Prefill speed", "Prefill, tok/s", "tok/s", "speed",
        lambda r: r.prefill.tok_s, lambda r: _one_each(r.samples.prefill_tok_s), ("prefill_tok_s",),
        "prefill_tok_s", interval="prefill",
    ),
)  # fmt: skip
METRICS: dict[str, Metric] = {metric.column: metric for metric in _TABLE}
LISTED = tuple(metric for metric in _TABLE if metric.listed)
COMPARED = tuple(metric for metric in _TABLE if metric.compared)
