"""What is written to a connection at once, and what is left to the event loop."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.tcp import Connection
from twisted.internet.testing import StringTransport

from config.sending import send_now


class Wire(Connection):  # type: ignore[misc]  # Twisted has no types
    """A connection whose socket takes `takes` bytes at a time, or fails with it."""

    connected = True

    def __init__(self, takes: Any) -> None:
        self.takes = takes
        self.asked: list[bytes] = []
        self.sent = b""
        self.awaited = False
        self._tempDataBuffer: list[bytes] = []
        self._tempDataLen = 0

    def writeSomeData(self, data: Any) -> Any:
        self.asked.append(bytes(data))
        if isinstance(self.takes, int):
            self.sent += bytes(data[: self.takes])
        return min(self.takes, len(data)) if isinstance(self.takes, int) else self.takes

    def startWriting(self) -> None:
        self.awaited = True

    @property
    def left(self) -> bytes:
        return b"".join([self.dataBuffer, *self._tempDataBuffer])


def test_what_the_socket_takes_leaves_nothing_to_wait_for() -> None:
    wire = Wire(10)
    send_now(wire, b"0123456789")
    assert (wire.sent, wire.left, wire.awaited) == (b"0123456789", b"", False)


@pytest.mark.parametrize(("takes", "sent"), [(3, b"012"), (0, b"")])
def test_the_rest_goes_when_the_socket_takes_more(takes: int, sent: bytes) -> None:
    wire = Wire(takes)
    send_now(wire, b"0123456789")
    assert wire.sent == sent
    assert (wire.sent + wire.left, wire.awaited) == (b"0123456789", True)


def test_a_failure_is_left_to_the_event_loop() -> None:
    wire = Wire(CONNECTION_LOST)
    send_now(wire, b"0123456789")
    assert (wire.left, wire.awaited) == (b"0123456789", True)


@pytest.mark.parametrize("buffer", ["dataBuffer", "_tempDataBuffer"])
def test_nothing_overtakes_what_is_waiting(buffer: str) -> None:
    wire = Wire(10)
    if buffer == "dataBuffer":
        wire.dataBuffer = b"before"
    else:
        wire.write(b"before")
    send_now(wire, b"after")
    assert (wire.asked, wire.left) == ([], b"beforeafter")


@pytest.mark.parametrize("state", [{"connected": False}, {"disconnecting": True}, {"TLS": True}])
def test_a_connection_that_is_not_plainly_open_is_not_written_to_directly(state: dict[str, bool]) -> None:
    wire = Wire(10)
    for name, value in state.items():
        setattr(wire, name, value)
    wire.write = lambda _data: None
    send_now(wire, b"x")
    assert wire.asked == []


def test_other_transports_are_written_to_as_they_are() -> None:
    transport = StringTransport()
    send_now(transport, b"x")
    assert transport.value() == b"x"
