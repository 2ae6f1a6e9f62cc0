"""Which browser owns a generation: a random name kept in its session, made when the page is opened.

The name outlives a login (which changes the session's key) and says nothing about who the visitor is.
"""

from __future__ import annotations

import secrets

from django.contrib.sessions.backends.base import SessionBase

_KEY = "playground_owner"


async def ensure_owner(session: SessionBase) -> str:
    """The owner's name, made and kept in the session if there is none."""
    owner = await owner_of(session)
    if not owner:
        owner = secrets.token_hex(16)
        await session.aset(_KEY, owner)
    return owner


async def owner_of(session: SessionBase) -> str:
    """The owner's name, or "" for a session that has not opened the page."""
    owner: str = await session.aget(_KEY, "")
    return owner
