"""How figures are written on pages: one rule for each quantity, so that two pages never disagree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django import template

from dashboard.measurements.metrics import METRICS, Metric, Style
from dashboard.models import Measurement

register = template.Library()

UNKNOWN = "unknown"
TOO_SMALL = "n too small"


@register.filter
def speed(value: float) -> str:
    """Tokens a second: three or four significant figures, thousands apart."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


@register.filter
def svg(value: float) -> str:
    """A length in a drawing: two decimals at most, a point whatever the language."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@register.filter
def exact(value: float) -> str:
    """A figure to seven significant digits: what a chart says of one point."""
    text = f"{value:,.{max(0, 6 - math.floor(math.log10(abs(value))))}f}" if value else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


@register.filter
def index(values: Sequence[Any], place: int) -> Any:
    """The value at `place`, which a template cannot write where the place is itself a variable."""
    return values[place]


@register.filter
def percent(value: float | None) -> str:
    """A ratio of bandwidth; a bandwidth that nobody knows gives no ratio."""
    return UNKNOWN if value is None else f"{value * 100:.1f}\N{NO-BREAK SPACE}%"


@register.filter
def times(value: float) -> str:
    """How many times as fast."""
    return f"{value:.2f}\N{NO-BREAK SPACE}×" if value < 10 else f"{value:.0f}\N{NO-BREAK SPACE}×"


@register.filter
def share(value: float) -> str:
    return f"{value * 100:.1f}\N{NO-BREAK SPACE}%"


@register.filter
def change(value: float) -> str:
    """A relative change with its sign; no change is 0."""
    text = f"{value * 100:+.1f}"
    return f"{'0' if not text.strip('+-0.') else text}\N{NO-BREAK SPACE}%".replace("-", "\N{MINUS SIGN}")


@register.filter
def micros(value: float | None) -> str:
    """Microseconds in the unit that reads best; a percentile that n does not bound says so."""
    if value is None:
        return TOO_SMALL
    if value >= 10_000:
        return f"{value / 1000:,.1f}\N{NO-BREAK SPACE}ms"
    if value >= 1000:
        return f"{value / 1000:,.2f}\N{NO-BREAK SPACE}ms"
    return f"{value:,.0f}\N{NO-BREAK SPACE}µs" if value >= 100 else f"{value:.1f}\N{NO-BREAK SPACE}µs"


@register.filter
def millis(value: float) -> str:
    """Milliseconds in the unit that reads best."""
    if value >= 10_000:
        return f"{value / 1000:.1f}\N{NO-BREAK SPACE}s"
    return f"{value:,.0f}\N{NO-BREAK SPACE}ms" if value >= 100 else f"{value:.2f}\N{NO-BREAK SPACE}ms"


@register.filter
def plain_us(value: float) -> str:
    """Microseconds in a column that names the unit."""
    text = f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


@register.filter
def signed_us(value: float) -> str:
    """A difference in microseconds with its sign; no difference is 0."""
    text = f"{value:+,.1f}" if abs(value) < 1000 else f"{value:+,.0f}"
    return "0" if not text.strip("+-0.") else text.replace("-", "\N{MINUS SIGN}")


@register.filter
def add_to(value: float, more: float) -> float:
    """Django's own `add` takes whole numbers only."""
    return value + more


@register.filter
def gbs(value: float) -> str:
    """A bandwidth, or that it is unknown (0 in the document)."""
    return f"{value:,.1f}\N{NO-BREAK SPACE}GB/s" if value else UNKNOWN


@register.filter
def params(value: int) -> str:
    """A number of parameters."""
    if value >= 1_000_000_000:
        return f"{value / 1e9:.2f}\N{NO-BREAK SPACE}B"
    return f"{value / 1e6:.1f}\N{NO-BREAK SPACE}M" if value >= 1_000_000 else f"{value:,}"


@register.filter
def megabytes(value: int) -> str:
    """Bytes as MB (10^6)."""
    return f"{value / 1e6:,.2f}\N{NO-BREAK SPACE}MB"


@register.filter
def gigabytes(value: float) -> str:
    """Bytes as GB (10^9), in a place that names the unit."""
    return _significant(value / 1e9)


@register.filter
def terabytes(gbs: float) -> str:
    """GB/s as TB/s, in a place that names the unit."""
    return _significant(gbs / 1e3)


def _significant(value: float) -> str:
    """Three significant figures or more, thousands apart, never as a power."""
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}" if value >= 1e-3 else f"{value:.1e}"


@register.filter
def written(value: float | None, metric: Metric) -> str:
    """A value of the metric's column; "unknown" or "n too small" where there is none."""
    if value is None:
        return UNKNOWN if metric.style == "percent" else TOO_SMALL
    return _STYLES[metric.style](value)


@register.filter
def of_metric(row: Measurement, metric: Metric) -> str:
    """The measurement's figure."""
    return written(getattr(row, metric.column), metric)


@register.filter
def metric_title(name: str) -> str:
    return METRICS[name].title


@register.filter
def metric_unit(name: str) -> str:
    return METRICS[name].unit


@register.filter
def in_unit(value: float, name: str) -> str:
    """A value of that metric to four significant digits, with its unit."""
    places = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{places}f}\N{NO-BREAK SPACE}{METRICS[name].unit}"


@register.filter
def minus(value: int, other: int) -> int:
    return value - other


@register.filter
def intcomma(value: int) -> str:
    """A count, thousands apart."""
    return f"{value:,}"


@register.filter
def span(seconds: float) -> str:
    """How long something takes, in the unit that reads best."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f}\N{NO-BREAK SPACE}{unit}"
    return (
        f"{seconds:.1f}\N{NO-BREAK SPACE}s" if seconds >= 1 else f"{seconds * 1000:.3g}\N{NO-BREAK SPACE}ms"
    )


@register.filter
def duration(seconds: float | None) -> str:
    """A span that a person waits for."""
    if seconds is None:
        return UNKNOWN
    if seconds < 90:
        return f"{seconds:.0f}\N{NO-BREAK SPACE}s"
    if seconds < 5400:
        return f"{seconds / 60:.0f}\N{NO-BREAK SPACE}min"
    return f"{seconds / 3600:.1f}\N{NO-BREAK SPACE}h"


@register.filter
def commit(sha: str) -> str:
    """A git hash as people write it; whether the tree was dirty stays visible."""
    head, _, rest = sha.partition("-")
    return (head[:9] + (f"-{rest}" if rest else "")) or UNKNOWN


_STYLES: Mapping[Style, Callable[[Any], str]] = {
    "speed": speed,
    "percent": percent,
    "millis": millis,
    "micros": micros,
}
