"""What the playground reads from its rows."""

from __future__ import annotations

from channels.db import aclose_old_connections

from playground.models import Generation


async def owned_generation(*, generation: str, owner: str) -> Generation | None:
    """The generation, if it belongs to the session `owner`; a client without a session owns none."""
    if not owner:
        return None
    await aclose_old_connections()
    return await Generation.objects.filter(id=generation, owner=owner).afirst()
