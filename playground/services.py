"""What changes a generation's row. A change names the state that it comes from: the first wins."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from engine.serving.errors import QueueUnavailable
from engine.serving.messages import Done, Failed, GenerateRequest, Started
from playground.models import Generation, Share
from playground.transcript import Transcript
from playground.workers import engine_client

State = Generation.State
FORGET_TASK = "playground.forget"


async def record_generation(*, request: GenerateRequest, owner: str) -> None:
    """A generation was asked for by the session `owner`."""
    await Generation.objects.acreate(id=request.id, owner=owner, request=asdict(request))


async def record_end(*, generation: str, transcript: Transcript, end: Done | Failed) -> bool:
    """It ended, `transcript` has it all. False if an end was recorded before."""
    state, started = _state_after(end), transcript.started
    changed = await Generation.objects.filter(
        id=generation, state=State.RUNNING
    ).aupdate(
        state=state,
        text=transcript.text.replace("\0", "\N{REPLACEMENT CHARACTER}"),  # PostgreSQL keeps no NUL
        model=started.model if started else "",
        backend=started.backend if started else "",
        timings={} if isinstance(end, Failed) else asdict(end.timings),
        environment=await _environment(started),
        pace=transcript.pace,
        finish_reason="" if isinstance(end, Failed) else end.finish_reason,
        error=end.message[:500] if isinstance(end, Failed) else "",
        finished=timezone.now(),
    )
    return changed == 1


def forget_old(*, now: datetime | None = None) -> int:
    """Deletes what has had its time; returns how many generations there were among it.

    A page shared more than SHARE_DAYS ago goes. A generation asked for more than GENERATION_DAYS ago goes
    unless a page still shows it.
    """
    moment = now or timezone.now()
    Share.objects.filter(created__lt=moment - timedelta(days=settings.SHARE_DAYS)).delete()
    old = Generation.objects.filter(created__lt=moment - timedelta(days=settings.GENERATION_DAYS))
    _, by_model = old.filter(lanes__isnull=True).delete()
    return by_model.get(Generation._meta.label, 0)


async def _environment(started: Started | None) -> dict[str, Any]:
    """What the worker says of its machine; nothing if it cannot be asked any more."""
    try:
        return await engine_client().environment(started.worker) if started else {}
    except QueueUnavailable:
        return {}


def _state_after(end: Done | Failed) -> Generation.State:
    if isinstance(end, Failed):
        return State.FAILED
    return State.CANCELLED if end.finish_reason == "cancelled" else State.DONE
