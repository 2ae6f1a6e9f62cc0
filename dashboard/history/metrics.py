"""What a history can show: each metric's unit, its columns, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import F, FloatField, Value
from django.db.models.expressions import Combinable


@dataclass(frozen=True, slots=True)
class Metric:
    """`value`, `low`, `high`: columns or expressions over a measurement, in `unit`; `n`: how many samples."""

    title: str
    unit: str
    value: str | Combinable
    low: str | Combinable
    high: str | Combinable
    n: str
    more_is_better: bool = True

    def columns(self) -> dict[str, Any]:
        """For `annotate`, under names that no field has."""
        pairs = {"the_value": self.value, "the_low": self.low, "the_high": self.high, "the_n": self.n}
        return {name: F(column) if isinstance(column, str) else column for name, column in pairs.items()}


def _utilisation(column: str, title: str) -> Metric:
    """MBU is the speed times a constant of the run, so its interval is the speed's, scaled."""
    percent = Value(100.0, output_field=FloatField())
    per_speed = F(column) / F("tok_s") * percent
    return Metric(
        title, "%", F(column) * percent, F("ci_low") * per_speed, F("ci_high") * per_speed, "samples"
    )


def _latency(name: str, column: str, title: str, unit: str, n: str) -> Metric:
    return Metric(title, unit, column, f"spread__{name}_low", f"spread__{name}_high", f"spread__{n}", False)


METRICS: dict[str, Metric] = {
    "tok_s": Metric("Decode speed", "tok/s", "tok_s", "ci_low", "ci_high", "samples"),
    "mbu_measured": _utilisation("mbu_measured", "MBU, of measured bandwidth"),
    "mbu_datasheet": _utilisation("mbu_datasheet", "MBU, of datasheet bandwidth"),
    "ttft_ms": _latency("ttft", "ttft_ms", "Time to first token, p50", "ms", "ttft_n"),
    "itl_p50": _latency("itl_p50", "itl_p50", "Inter-token latency, p50", "µs", "itl_n"),
    "itl_p99": _latency("itl_p99", "itl_p99", "Inter-token latency, p99", "µs", "itl_n"),
    "prefill_tok_s": Metric(
        "Prefill speed", "tok/s", "prefill_tok_s", "spread__prefill_low", "spread__prefill_high", "samples"
    ),
}
