"""Which browser owns a generation: a random name kept in its session, made when the page is opened.

The name outlives a login (which changes the session's key) and says nothing about who the visitor is.
"""

from __future__ import annotations

import secrets

from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest

from config.addresses import address_of
from playground.keeping import may_have_session

_KEY = "playground_owner"


async def ensure_owner(request: HttpRequest) -> str:
    """The owner's name, made and kept in the session if there is none.

    "" for a visitor who gets no session now (`keeping`): the page works, what it runs cannot be resumed.
    """
    owner = await owner_of(request.session)
    if not owner and await may_have_session(address_of(request)):
        owner = secrets.token_hex(16)
        await request.session.aset(_KEY, owner)
    return owner


async def owner_of(session: SessionBase) -> str:
    """The owner's name, or "" for a session that has not opened the page."""
    owner: str = await session.aget(_KEY, "")
    return owner
