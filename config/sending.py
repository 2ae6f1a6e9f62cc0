"""Writing to a connection of Twisted without a turn of its event loop."""

from __future__ import annotations

from typing import Any

from twisted.internet.tcp import Connection


def send_now(transport: Any, data: bytes) -> None:
    """Writes what the socket takes. Twisted would first ask the system to be told that it takes something."""
    if _is_open(transport) and not transport.TLS and not (transport.dataBuffer or transport._tempDataLen):
        sent = transport.writeSomeData(data)
        if isinstance(sent, int):  # a failure is the reactor's to see, which tries again
            data = data[sent:]
    if data:
        transport.write(data)


def _is_open(transport: Any) -> bool:
    return isinstance(transport, Connection) and transport.connected and not transport.disconnecting
