"""Probes: is the process alive, is everything it needs there, and what has it counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypedDict

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from engine.serving.errors import QueueUnavailable
from playground import metrics
from playground.workers import engine_client


class Finding(TypedDict):
    ok: bool
    detail: str


@require_safe
async def healthz(_request: HttpRequest) -> JsonResponse:
    """200 as long as this process answers; needs nothing else."""
    return JsonResponse({"status": "ok"})


@require_safe
async def readyz(_request: HttpRequest) -> JsonResponse:
    """200 if a generation could be served now, else 503; says which part is missing and why."""
    checks: dict[str, Callable[[], Awaitable[Finding]]] = {
        "redis": _redis,
        "database": _database,
        "worker": _worker,
    }
    findings = {name: await check() for name, check in checks.items()}
    ready = all(finding["ok"] for finding in findings.values())
    return JsonResponse({"ready": ready, **findings}, status=200 if ready else 503)


async def exposition() -> bytes:
    """What `playground.metrics` has counted; the queue's figures are left out while Redis is away."""
    try:
        return metrics.exposition(await engine_client().workers(), await engine_client().depth())
    except QueueUnavailable:
        return metrics.exposition([], {})


async def _redis() -> Finding:
    try:
        depth = await engine_client().depth()
    except QueueUnavailable as error:
        return {"ok": False, "detail": str(error)}
    return {"ok": True, "detail": f"{depth['interactive']} generations and {depth['bench']} points in hand"}


async def _database() -> Finding:
    try:
        await sync_to_async(_select_one)()
    except DatabaseError as error:
        return {"ok": False, "detail": f"the database does not answer: {error}"}
    return {"ok": True, "detail": connection.vendor}


def _select_one() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM playground_generation LIMIT 1")


async def _worker() -> Finding:
    try:
        workers = await engine_client().workers()
    except QueueUnavailable:
        return {"ok": False, "detail": "unknown while Redis does not answer"}
    if not workers:
        return {"ok": False, "detail": "no engine worker is running"}
    ready = [worker for worker in workers if worker.state not in ("loading", "stopping")]
    said = "; ".join(f"{w.name}: {w.model} on {w.backend}, {w.state}" for w in workers)
    return {"ok": bool(ready), "detail": said}
