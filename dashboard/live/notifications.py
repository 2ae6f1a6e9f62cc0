"""Says "something changed" to open pages. Best effort: a lost hint costs freshness, never data."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypedDict

import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

from dashboard import circuit_breaker

log = structlog.get_logger(__name__)

PATIENCE_S = 5.0
"""How long one hint may take; the channel layer itself, which waits for hints as well, knows no limit."""


class Hint(TypedDict):
    """What a page receives. `run` is a sweep run's key for 'sweep', a measurement's for 'measurement'."""

    type: Literal["sweep", "measurement"]
    run: int
    version: int


def group_of(sweep_run: int | None) -> str:
    """The channel group that hears of one sweep run, or of new measurements."""
    return "dashboard.measurements" if sweep_run is None else f"dashboard.sweep.{sweep_run}"


def sweep_changed(run: int, version: int) -> None:
    _send(group_of(run), {"type": "sweep", "run": run, "version": version})


def measurement_added(run: int) -> None:
    _send(group_of(None), {"type": "measurement", "run": run, "version": 0})


def _send(group: str, hint: Hint) -> None:
    layer = get_channel_layer()
    if layer is None or not circuit_breaker.redis_circuit.closed:  # an import must not wait at every row
        return
    try:
        async_to_sync(_publish)(layer, group, hint)
    except Exception as error:  # a dead Redis must not fail the sweep that reports its progress
        circuit_breaker.redis_circuit.trip()
        log.warning(
            "hints_lost", group=group, error=repr(error), quiet_s=circuit_breaker.redis_circuit.seconds
        )


async def _publish(layer: Any, group: str, hint: Hint) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await layer.group_send(group, {"type": "dashboard.hint", "hint": hint})
