"""What changes a generation's row. A change names the state that it comes from: the first wins."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import msgspec
from channels.db import aclose_old_connections
from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from engine.serving.errors import QueueUnavailable
from engine.serving.messages import Done, Failed, GenerateRequest, Started
from playground.keeping import size_of
from playground.models import Generation, Share
from playground.transcript import Transcript
from playground.workers import engine_client

State = Generation.State
FORGET_TASK = "playground.forget"
ROW_BYTES = 500
"""What a row takes beside its texts: columns, indexes."""
_AT_ONCE = 500


async def record_generation(*, request: GenerateRequest, owner: str) -> None:
    """A generation was asked for by the session `owner`. Does nothing if another process wrote that."""
    asked = msgspec.to_builtins(request)
    await aclose_old_connections()
    row = Generation(id=request.id, owner=owner, request=asked, size=ROW_BYTES + size_of(asked))
    await Generation.objects.abulk_create([row], ignore_conflicts=True)


async def record_end(*, generation: str, transcript: Transcript, end: Done | Failed) -> bool:
    """It ended, `transcript` has it all. False if an end was recorded before."""
    state, started = _state_after(end), transcript.started
    environment = await _environment(started)
    await aclose_old_connections()
    written = size_of([transcript.text, transcript.pace, environment])
    changed = await Generation.objects.filter(
        id=generation, state=State.RUNNING
    ).aupdate(
        state=state,
        text=transcript.text.replace("\0", "\N{REPLACEMENT CHARACTER}"),  # PostgreSQL keeps no NUL
        model=started.model if started else "",
        backend=started.backend if started else "",
        timings={} if isinstance(end, Failed) else asdict(end.timings),
        environment=environment,
        pace=transcript.pace,
        finish_reason="" if isinstance(end, Failed) else end.finish_reason,
        error=end.message[:500] if isinstance(end, Failed) else "",
        finished=timezone.now(),
        size=F("size") + written,
    )
    if changed and isinstance(end, Failed):
        await _drop_prompt(generation)
    return changed == 1


async def _drop_prompt(generation: str) -> None:
    """Nothing came of it: what the visitor wrote is not kept."""
    row = await Generation.objects.aget(id=generation)
    row.request = {**row.request, "prompt": {"text": ""}}
    row.size = ROW_BYTES + size_of([row.request, row.text, row.pace, row.environment])
    await row.asave(update_fields=["request", "size"])


def forget_old(*, now: datetime | None = None) -> int:
    """Deletes what has had its time; returns how many generations there were among it.

    A page shared more than SHARE_DAYS ago goes. A generation asked for more than GENERATION_DAYS ago goes
    unless a page still shows it; so do the oldest of those that take more than KEPT_BYTES together.
    """
    moment = now or timezone.now()
    Share.objects.filter(created__lt=moment - timedelta(days=settings.SHARE_DAYS)).delete()
    old = Generation.objects.filter(created__lt=moment - timedelta(days=settings.GENERATION_DAYS))
    _, by_model = old.filter(lanes__isnull=True).delete()
    return by_model.get(Generation._meta.label, 0) + _forget_beyond(settings.KEPT_BYTES)


def _forget_beyond(limit: int) -> int:
    total = Generation.objects.aggregate(total=Sum("size"))["total"] or 0
    forgotten = 0
    while total > limit:
        rows = Generation.objects.filter(lanes__isnull=True).exclude(state=State.RUNNING)
        oldest = list(rows.order_by("created").values_list("id", "size")[:_AT_ONCE])
        names = []
        while oldest and total > limit:
            name, size = oldest.pop(0)
            names.append(name)
            total -= size
        if not names:
            return forgotten
        forgotten += Generation.objects.filter(id__in=names).delete()[0]
    return forgotten


@transaction.atomic
def erase(*, owner: str) -> int:
    """Takes down every page of the session `owner` and deletes its generations that have ended.

    Returns how many generations there were.
    """
    if not owner:
        return 0
    Share.objects.filter(owner=owner).delete()
    mine = Generation.objects.filter(owner=owner).exclude(state=State.RUNNING)
    _, by_model = mine.filter(lanes__isnull=True).delete()
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
