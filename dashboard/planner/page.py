"""The roofline page as values: the model's cost, a row for each hardware, the chart, measured speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dashboard.planner.chart import Mark, Roof, RooflineChart, roofline_chart
from dashboard.planner.forms import CUSTOM
from dashboard.planner.measured import MeasuredHardware, MeasuredPoint
from engine.measuring.bandwidth import HARDWARE, PUBLISHED_READ_GBS, Memory, hardware
from engine.measuring.roofline import (
    FP16,
    PUBLISHED,
    ActiveModel,
    Plan,
    Published,
    Share,
    TokenCost,
    active_cost,
    launch_limit,
    launch_overhead_us,
    plan,
    token_cost,
)


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of the table. The smaller of what memory and what launches allow is the speed.

    `read_tok_s` is the ceiling by what a plain read is known to reach, where the row rests on another figure.
    """

    plan: Plan
    launches_limit: bool
    seconds: float
    read_tok_s: float | None


@dataclass(frozen=True, slots=True)
class PlannerPage:
    cost: TokenCost
    rows: tuple[PlannedRow, ...]
    launch_us: float
    """Microseconds of launches a token."""
    launch_tok_s: float
    chart: RooflineChart
    measured: tuple[MeasuredPoint, ...]
    published: tuple[Published, ...]


def planner_page(
    asked: Mapping[str, Any], points: Sequence[MeasuredPoint], machines: Sequence[MeasuredHardware]
) -> PlannerPage:
    """`asked` is the form's cleaned data. Raises ValueError for a context that the model does not hold."""
    cost = model_cost(asked)
    rows = _rows(asked, cost, machines)
    here = {machine.name for machine in machines}
    limit = launch_limit(cost.layers, asked["kernels"], asked["launch_us"])
    return PlannerPage(
        cost,
        tuple(rows),
        launch_overhead_us(cost.layers, asked["kernels"], asked["launch_us"]),
        limit,
        roofline_chart(
            cost.bytes,
            [_roof(row.plan, row.plan.hardware in here) for row in rows],
            utilisation=asked["mbu"] / 100,
            launch_tok_s=limit,
            measured=[Mark(p.bytes, p.tok_s, _measured_title(p), p.hardware) for p in points],
            published=[Mark(token_cost(p.model).bytes, p.tok_s, _published_title(p)) for p in PUBLISHED],
        ),
        tuple(points),
        PUBLISHED,
    )


def model_cost(asked: Mapping[str, Any]) -> TokenCost:
    """What a token of the chosen model reads. Raises ValueError for a context that it does not hold."""
    kv = None if asked["kv_kb"] is None else asked["kv_kb"] * 1000
    own = {"weight_bytes": asked["weight_bytes"], "kv_bytes": kv, "layers": asked["layers"]}
    if asked["model"] != CUSTOM:
        return token_cost(asked["model"], context=asked["context"], **own)
    params = asked["active"] * 1e9
    name = f"{asked['active']:g}\N{NO-BREAK SPACE}B active"
    entered = ActiveModel(name, (Share(params, FP16),), asked["layers"], "as entered")
    return active_cost(entered, asked["context"], **own)


def _rows(
    asked: Mapping[str, Any], cost: TokenCost, machines: Sequence[MeasuredHardware]
) -> list[PlannedRow]:
    here = {machine.name: machine for machine in machines}
    common = {
        "by_read": asked["bandwidth"] != "stated",
        "utilisation": asked["mbu"] / 100,
        "layers": cost.layers,
        "kernels": asked["kernels"],
        "launch_us": asked["launch_us"],
        "tokens": asked["tokens"],
    }
    makers = [hardware(name) for name in asked["hardware"] if name not in here]
    if asked["bandwidth"] == "published":
        makers = [_as_published(row) for row in makers]
    if asked["own_tbs"] is not None:
        own = asked["own_tbs"]
        makers.append(Memory(asked["own_name"] or "Your GPU", "", own, own, "as entered"))
    ours = [_memory(here[name]) for name in asked["hardware"] if name in here]
    rows = plan(cost.bytes, makers, devices=asked["devices"], **common)
    # What was measured is the machine as it stood, with as many devices as it had.
    rows += plan(cost.bytes, ours, devices=1, **common)
    return [_limit(row, asked["tokens"]) for row in sorted(rows, key=lambda row: -row.gbs)]


def _limit(row: Plan, tokens: int) -> PlannedRow:
    speed = min(row.at_mbu_tok_s, row.launch_tok_s)
    known = next((memory for memory in HARDWARE if memory.name == row.hardware), None)
    read = known.read_tbs * 1000 * row.devices if known and known.read_tbs else None
    ours = row.ceiling_tok_s * read / row.gbs if read and abs(read / row.gbs - 1) > 0.01 else None
    return PlannedRow(row, row.launch_tok_s < row.at_mbu_tok_s, tokens / speed, ours)


def _as_published(row: Memory) -> Memory:
    """With the bandwidth that Kog's published ceilings rest on, where there is one."""
    gbs = PUBLISHED_READ_GBS.get(row.name)
    if gbs is None:
        return row
    return replace(row, read_tbs=gbs / 8000, source=f"{gbs / 1000:g} TB/s of 8, as Kog computes with")


def _memory(machine: MeasuredHardware) -> Memory:
    read = machine.gbs / 1000
    return Memory(machine.name, "", read, read, f"measured here on {machine.created:%Y-%m-%d}")


def _roof(row: Plan, here: bool) -> Roof:
    """What was measured here is a machine with as many devices as its name says."""
    return Roof(
        row.hardware if here or row.devices == 1 else f"{row.devices} × {row.hardware}", row.gbs, here
    )


def _measured_title(point: MeasuredPoint) -> str:
    return f"{point.model} on {point.backend}, {point.hardware}: {point.tok_s:,.1f} tok/s measured"


def _published_title(row: Published) -> str:
    return f"{row.who}, {row.model} on {row.devices} × {row.hardware}: {row.tok_s:,.0f} tok/s published"
