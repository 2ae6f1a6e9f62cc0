"""Where a webhook goes and what it is signed with, as settings give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

LEAST_SECRET = 16


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
