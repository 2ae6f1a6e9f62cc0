"""How much one visitor may take a minute, and whose word about addresses counts, as settings give them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_RATE = re.compile(r"(\d{1,9})/(\d{1,9})")


class Rate(NamedTuple):
    """A minute's worth, which may also come at once."""

    requests: int
    tokens: int
    """Generated ones; prompts are not counted."""


def rate(name: str, text: str) -> Rate | None:
    """REQUESTS/TOKENS a minute, or None for `off`. Raises ImproperlyConfigured."""
    if text == "off":
        return None
    found = _RATE.fullmatch(text)
    if found is None or not int(found[1]) or not int(found[2]):
        raise ImproperlyConfigured(
            f"{name} is {text[:40]!r}; it must be REQUESTS/TOKENS a minute, as in 240/300000, or off"
        )
    return Rate(int(found[1]), int(found[2]))


def sockets(name: str, text: str) -> tuple[int, int]:
    """ADDRESS/ALL: how many may be open of one address, and altogether. Raises ImproperlyConfigured."""
    found = _RATE.fullmatch(text)
    if found is None or not 0 < int(found[1]) <= int(found[2]):
        raise ImproperlyConfigured(
            f"{name} is {text[:40]!r}; it must be ADDRESS/ALL, how many one address and all may have open,"
            " as in 100/2000"
        )
    return int(found[1]), int(found[2])


def whole(name: str, text: str, low: int, high: int) -> int:
    """A whole number. Raises ImproperlyConfigured."""
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ImproperlyConfigured(f"{name} is {text[:20]!r}; it must be a whole number, {low} to {high:,}")
    return int(text)


def limit(name: str, text: str) -> int | None:
    """A whole number above 0, or None for `off`. Raises ImproperlyConfigured."""
    return None if text == "off" else whole(name, text, 1, 10**12)


def networks(name: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """Addresses and networks, as in 10.0.0.0/8. Raises ImproperlyConfigured."""
    try:
        return tuple(ipaddress.ip_network(text.strip()) for text in texts)
    except ValueError as error:
        raise ImproperlyConfigured(
            f"{name} holds what is no address or network ({error}); write it as in 10.0.0.0/8,::1"
        ) from error
