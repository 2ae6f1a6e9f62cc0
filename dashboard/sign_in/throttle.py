"""Guessing passwords takes time: after MOST wrong ones for a name from one address, none counts for a while.

The counts lie in the cache, so with Django's default one each web process counts for itself.
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.conf import settings
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from config.addresses import client_address

MOST = 10
WAIT_S = 300


class Throttle:
    """A backend that knows nobody: it keeps a name that was guessed too often from those that do."""

    def authenticate(self, request: HttpRequest | None, username: str | None = None, **_: Any) -> None:
        if must_wait(request, username or ""):
            raise PermissionDenied


def must_wait(request: HttpRequest | None, username: str) -> bool:
    return request is not None and cache.get(_key(request, username), 0) >= MOST


def count(request: HttpRequest | None = None, credentials: Any = None, **_: Any) -> None:
    """One more wrong password. What is refused meanwhile does not make the wait longer."""
    username = (credentials or {}).get("username") or ""
    if request is None or must_wait(request, username):
        return
    key = _key(request, username)
    if not cache.add(key, 1, WAIT_S):
        cache.incr(key)


def forget(request: HttpRequest | None = None, user: Any = None, **_: Any) -> None:
    if request is not None:
        cache.delete(_key(request, user.get_username()))


def _key(request: HttpRequest, username: str) -> str:
    peer, forwarded = (request.META.get(name) or "" for name in ("REMOTE_ADDR", "HTTP_X_FORWARDED_FOR"))
    # Behind a proxy the peer is the proxy for everybody: anybody's guesses would keep the owner out.
    who = f"{client_address(peer, forwarded, settings.TRUSTED_PROXIES)} {username.casefold()}"
    return f"sign-in:{hashlib.sha256(who.encode()).hexdigest()}"


def connect() -> None:
    user_login_failed.connect(count, dispatch_uid="sign-in-count")
    user_logged_in.connect(forget, dispatch_uid="sign-in-forget")
