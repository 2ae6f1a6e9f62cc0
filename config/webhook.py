"""Secrets shared with other machines: the token of a push, and a webhook with what signs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

LEAST_SECRET = 16
LEAST_TOKEN = 32


def token(name: str, value: str) -> str:
    """A secret that others send to us, or none. Raises ImproperlyConfigured for one that can be guessed."""
    if value and len(value) < LEAST_TOKEN:
        raise ImproperlyConfigured(
            f"{name} has {len(value)} characters; it needs at least {LEAST_TOKEN}: `openssl rand -hex 16`"
        )
    return value


@dataclass(frozen=True, slots=True)
class Webhook:
    url: str
    secret: str = field(repr=False)


def webhook(name: str, url: str, secret: str) -> Webhook | None:
    """The webhook that NAME_URL and NAME_SECRET describe; None if there is no URL.

    Raises ImproperlyConfigured for an address that is not https (http only to this machine), that carries
    a password, or that has no secret to sign with.
    """
    if not url:
        return None
    parts = urlsplit(url)
    here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and here):
        raise ImproperlyConfigured(
            f"{name}_URL begins with {parts.scheme[:20]!r}; it must be an https address (http only to "
            "this machine)"
        )
    if not parts.hostname or parts.username or parts.password:
        raise ImproperlyConfigured(f"{name}_URL must name a host, and no user or password")
    if len(secret) < LEAST_SECRET:
        raise ImproperlyConfigured(
            f"{name}_SECRET has {len(secret)} characters; it needs at least {LEAST_SECRET}, for the "
            "receiver to tell our calls from others"
        )
    return Webhook(url, secret)
