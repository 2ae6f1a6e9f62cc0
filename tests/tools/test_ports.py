"""A port for a program that is started, and restarted, by a tool."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tools import ports
from tools.ports import free_port


def test_the_port_can_be_bound_and_is_none_of_outgoing_connections() -> None:
    port = free_port()

    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert not outgoing.exists() or port < int(outgoing.read_text().split()[0])
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        held = taken.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", range(held, held + 1))
        with pytest.raises(OSError, match=f"no port from {held} to {held} is free"):
            free_port()
