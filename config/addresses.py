"""Which address a request comes from, where a proxy may stand in between."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.http import HttpRequest

from config.rates import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
IPV6_PREFIX = 64
"""Bits of an IPv6 address that tell networks apart: one visitor has all the rest to choose from."""


def client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """The address to count by; "" where there is none, as on a Unix socket.

    `peer` is the other end of the connection, `forwarded` the X-Forwarded-For header. Each address is
    believed about the one before it only if it is a trusted proxy: whatever else the header holds,
    anybody could have written.
    """
    found = _visitor(peer, forwarded, trusted)
    return "" if found is None else _network_of(found)


def visitor_address(scope: Mapping[str, Any]) -> str:
    """The address to count whoever is at the other end of an ASGI connection by."""
    return client_address(*_peer_and_forwarded(scope), settings.TRUSTED_PROXIES)


def address_of(request: HttpRequest) -> str:
    """The address to count whoever sent a request by."""
    return client_address(*_headers(request), settings.TRUSTED_PROXIES)


def comes_from(request: HttpRequest, networks: Sequence[Network]) -> bool:
    """Whether whoever sent a request is in one of `networks`."""
    found = _visitor(*_headers(request), settings.TRUSTED_PROXIES)
    return found is not None and any(found in network for network in networks)


def is_trusted(peer: str, trusted: Sequence[Network]) -> bool:
    """Whether the other end of a connection is one of the proxies whose word counts."""
    found = _parse(peer)
    return found is not None and any(found in network for network in trusted)


def _peer_and_forwarded(scope: Mapping[str, Any]) -> tuple[str, str]:
    """The other end of the connection, and X-Forwarded-For."""
    headers = [value for name, value in scope.get("headers", ()) if name == b"x-forwarded-for"]
    return (scope.get("client") or ("",))[0] or "", b",".join(headers).decode("latin-1")


def _headers(request: HttpRequest) -> tuple[str, str]:
    """The same of a request."""
    return request.META.get("REMOTE_ADDR", ""), request.META.get("HTTP_X_FORWARDED_FOR", "")


def _visitor(peer: str, forwarded: str, trusted: Sequence[Network]) -> Address | None:
    found = _parse(peer)
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    while found is not None and hops and any(found in network for network in trusted):
        before = _parse(hops.pop())
        if before is None:
            break
        found = before
    return found


def _parse(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _network_of(address: Address) -> str:
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False).network_address)
