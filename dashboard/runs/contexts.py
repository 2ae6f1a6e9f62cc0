"""Speed against context length: one model on one machine, whatever else is equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import OuterRef, Subquery

from dashboard.charts.scale import LinearScale, LogScale, Tick, apart
from dashboard.models import Configuration, Measurement

WIDTH = 720.0
HEIGHT = 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 16.0, 12.0, 34.0
MAX_CONTEXTS = 40
_SAME = tuple(name for name in Configuration.NATURAL_KEY if name not in ("context", "tokens"))


@dataclass(frozen=True, slots=True)
class ContextPoint:
    """The speed at one context, with its interval and what the bandwidth allows there (None if unknown)."""

    context: int
    row: Measurement
    ceiling: float | None
    current: bool
    x: float
    y: float
    low: float
    high: float
    ceiling_y: float | None


@dataclass(frozen=True, slots=True)
class ContextChart:
    points: tuple[ContextPoint, ...]
    line: str
    ceiling_line: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    bottom: float = HEIGHT - _BOTTOM


def other_contexts(row: Measurement) -> list[Measurement]:
    """`row`, and the newest run at each other context of the same model, machine and settings. 2 queries.

    How many tokens were generated may differ: long contexts are measured with fewer.
    """
    same = {name: getattr(row.configuration, name) for name in _SAME}
    newest = (
        Measurement.objects.filter(configuration=OuterRef("pk")).order_by("-created", "-pk").values("pk")[:1]
    )
    keys = (
        Configuration.objects.filter(**same)
        .exclude(context=row.configuration.context)
        .annotate(newest=Subquery(newest))
        .filter(newest__isnull=False)
        .order_by("context")
        .values_list("newest", flat=True)[:MAX_CONTEXTS]
    )
    others = Measurement.objects.filter(pk__in=list(keys)).select_related("configuration").defer("document")
    by_context = {one.configuration.context: one for one in others.order_by("created", "pk")}
    return sorted([row, *by_context.values()], key=lambda m: m.configuration.context)


def context_chart(rows: Sequence[Measurement], current: int) -> ContextChart | None:
    """None if there is only one context. The axis of contexts is logarithmic, that of speeds starts at 0."""
    if len(rows) < 2:
        return None
    contexts = [row.configuration.context for row in rows]
    ceilings = [row.tok_s / row.mbu_measured if row.mbu_measured else None for row in rows]
    top = 1.06 * max([row.ci_high for row in rows] + [c for c in ceilings if c is not None])
    x = LogScale(contexts[0], contexts[-1], _LEFT + 12, WIDTH - _RIGHT - 12)
    y = LinearScale(0.0, top, HEIGHT - _BOTTOM, _TOP)
    points = tuple(
        ContextPoint(
            context, row, ceiling, row.pk == current, x(context), y(row.tok_s), y(row.ci_low), y(row.ci_high),
            None if ceiling is None else y(ceiling),
        )
        for context, row, ceiling in zip(contexts, rows, ceilings, strict=True)
    )  # fmt: skip
    return ContextChart(
        points,
        " ".join(f"{p.x:g},{p.y:g}" for p in points),
        " ".join(f"{p.x:g},{p.ceiling_y:g}" for p in points if p.ceiling_y is not None),
        apart([Tick(p.x, f"{p.context:,}") for p in points]),
        y.ticks(4),
    )
