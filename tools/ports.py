"""Ports of this machine for programs that a tool starts."""

from __future__ import annotations

import random
import socket

PORTS = range(10_000, 32_768)
"""Below those that systems give to outgoing connections, which take a port while its program restarts."""


def free_port() -> int:
    """A loopback port that nobody listens on. Raises OSError if a hundred that were tried are taken."""
    for _ in range(100):
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {PORTS[0]} to {PORTS[-1]} is free")
