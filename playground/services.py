"""What changes a generation's row. A change names the state that it comes from: the first wins."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from engine.serving.messages import Done, Failed, GenerateRequest, Started
from playground.models import Generation

State = Generation.State
FORGET_TASK = "playground.forget"


async def record_generation(*, request: GenerateRequest, owner: str) -> None:
    """A generation was asked for by the session `owner`."""
    await Generation.objects.acreate(id=request.id, owner=owner, request=asdict(request))


async def record_end(*, generation: str, started: Started | None, end: Done | Failed, text: str) -> bool:
    """It ended with `text`. False if an end was recorded before."""
    state = _state_after(end)
    changed = await Generation.objects.filter(
        id=generation, state=State.RUNNING
    ).aupdate(
        state=state,
        text=text.replace("\0", "\N{REPLACEMENT CHARACTER}"),  # PostgreSQL keeps no NUL
        model=started.model if started else "",
        backend=started.backend if started else "",
        timings={} if isinstance(end, Failed) else asdict(end.timings),
        finish_reason="" if isinstance(end, Failed) else end.finish_reason,
        error=end.message[:500] if isinstance(end, Failed) else "",
        finished=timezone.now(),
    )
    return changed == 1


def forget_old(*, now: datetime | None = None) -> int:
    """Deletes generations asked for more than GENERATION_DAYS ago; returns how many there were."""
    oldest = (now or timezone.now()) - timedelta(days=settings.GENERATION_DAYS)
    deleted, _ = Generation.objects.filter(created__lt=oldest).delete()
    return deleted


def _state_after(end: Done | Failed) -> Generation.State:
    if isinstance(end, Failed):
        return State.FAILED
    return State.CANCELLED if end.finish_reason == "cancelled" else State.DONE
