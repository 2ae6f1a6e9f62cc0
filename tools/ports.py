"""Ports of this machine for programs that a tool starts."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A loopback port that nobody listens on (the kernel does not hand it out again soon)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
