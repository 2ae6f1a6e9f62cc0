"""Guessing passwords takes time: after MOST wrong ones for a name from one address, none counts a while."""

from __future__ import annotations

import hashlib
from typing import Any

from django.conf import settings
from django.contrib.auth.signals import user_logged_in
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from config.addresses import client_address
from dashboard.sign_in import counts

MOST = 10
WAIT_S = 300
_COUNTED = "SIGN_IN_COUNTED"


class Throttle:
    """A backend that knows nobody: it keeps a name that was guessed too often from those that do.

    A password counts as wrong until it has proved right, so that guesses at the same time all count.
    """

    def authenticate(self, request: HttpRequest | None, username: str | None = None, **_: Any) -> None:
        if request is None:
            return
        key = _key(request, username or "")
        if counts.increase(key, WAIT_S) > MOST:
            raise PermissionDenied
        request.META[_COUNTED] = key


def must_wait(request: HttpRequest | None, username: str) -> bool:
    return request is not None and counts.value(_key(request, username)) >= MOST


def forget(request: HttpRequest | None = None, **_: Any) -> None:
    if request is not None and (key := request.META.pop(_COUNTED, None)):
        counts.forget(key)


def _key(request: HttpRequest, username: str) -> str:
    peer, forwarded = (request.META.get(name) or "" for name in ("REMOTE_ADDR", "HTTP_X_FORWARDED_FOR"))
    # Behind a proxy the peer is the proxy for everybody: anybody's guesses would keep the owner out.
    who = f"{client_address(peer, forwarded, settings.TRUSTED_PROXIES)} {username.casefold()}"
    return f"sign-in:{hashlib.sha256(who.encode()).hexdigest()}"


def connect() -> None:
    user_logged_in.connect(forget, dispatch_uid="sign-in-forget")
