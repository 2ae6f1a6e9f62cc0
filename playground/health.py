"""Probes: is everything there that this process needs, and what has it counted (`config.alive`: does it run).

Names of machines, models and drivers are for MONITORS and the staff; others hear what works.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypedDict

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from config import disk
from config.addresses import comes_from
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import Heartbeat
from playground import metrics
from playground.models import Generation
from playground.workers import engine_client


class Finding(TypedDict):
    ok: bool
    detail: str


@require_safe
async def readyz(request: HttpRequest) -> JsonResponse:
    """200 if a generation could be served now, else 503; says which part is missing and, to some, why."""
    checks: dict[str, Callable[[], Awaitable[Finding]]] = {
        "redis": _redis,
        "database": _database,
        "disk": _disk,
        "worker": _worker,
    }
    findings = {name: await check() for name, check in checks.items()}
    ready = all(finding["ok"] for finding in findings.values())
    shown = findings if await may_watch(request) else {n: {"ok": f["ok"]} for n, f in findings.items()}
    return JsonResponse({"ready": ready, **shown}, status=200 if ready else 503)


async def may_watch(request: HttpRequest) -> bool:
    """Whether whoever asks may know what runs here: a monitor by its address, or an account of the staff."""
    if comes_from(request, settings.MONITORS):
        return True
    try:
        user = await request.auser()
    except DatabaseError:
        return False
    return user.is_staff and user.is_active


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
        await sync_to_async(_write_nothing)()
    except DatabaseError as error:
        return {"ok": False, "detail": f"the database does not answer: {error}"}
    return {"ok": True, "detail": connection.vendor}


def _write_nothing() -> None:
    """As a write that matches no row: a database that only reads refuses it."""
    Generation.objects.filter(id="").update(state="")


async def _disk() -> Finding:
    try:
        disk.check_room()
    except disk.DiskFull as error:
        return {"ok": False, "detail": str(error)}
    return {"ok": True, "detail": f"{disk.free_bytes() / 1e6:,.0f} MB free"}


async def _worker() -> Finding:
    try:
        workers = await engine_client().workers()
    except QueueUnavailable:
        return {"ok": False, "detail": "unknown while Redis does not answer"}
    if not workers:
        return {"ok": False, "detail": "no engine worker is running"}
    ready = [worker for worker in workers if worker.state not in ("loading", "stopping")]
    said = "; ".join(f"{w.name}: {w.model} on {w.backend}, {w.state}{_others(w)}" for w in workers)
    return {"ok": bool(ready), "detail": said}


def _others(worker: Heartbeat) -> str:
    """The models that it serves besides, each with what there is to say of it."""
    others = [one for one in worker.served if one.name != worker.model or one.state == "failed"]
    return "".join(f"; {one.name}, {one.state}{one.detail and f' ({one.detail})'}" for one in others)
