"""Whose address counts, with proxies that are trusted and headers that anybody wrote."""

from __future__ import annotations

import pytest

from config.addresses import client_address
from config.rates import networks

TRUSTED = networks("TRUSTED_PROXIES", ["10.0.0.0/8", "::1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("192.0.2.7", "", "192.0.2.7"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),  # not from a proxy that is trusted
        ("10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "203.0.113.9, 198.51.100.1", "198.51.100.1"),  # the first is what the client wrote
        ("10.1.2.3", "198.51.100.1, 10.9.9.9", "198.51.100.1"),  # two proxies of ours
        ("10.1.2.3", "10.9.9.9", "10.9.9.9"),
        ("10.1.2.3", "nonsense", "10.1.2.3"),
        ("10.1.2.3", "198.51.100.1, nonsense", "10.1.2.3"),
        ("::ffff:10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("::ffff:192.0.2.7", "", "192.0.2.7"),
        ("::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "", "2001:db8:1:2::"),
        ("", "198.51.100.1", ""),
        ("/run/socket", "", ""),
    ],
)
def test_the_address_is_the_last_one_that_a_trusted_proxy_vouches_for(peer, forwarded, found):
    assert client_address(peer, forwarded, TRUSTED) == found
