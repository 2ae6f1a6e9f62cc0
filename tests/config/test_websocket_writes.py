"""What a websocket writes at once, and what together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from autobahn.websocket.protocol import TrafficStats

from config.websocket import Socket


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.fixture
def socket() -> Socket:
    """An open one, of which texts are written as they are."""
    opened = Socket()
    opened.send_queue, opened.transport, opened.state = [], Transport(), Socket.STATE_OPEN
    opened.client_addr = ("192.0.2.1", 5)
    opened.sendMessage = lambda payload, _binary: opened.sendData(payload)
    return opened


def test_what_is_said_at_once_is_written_at_once(socket: Socket) -> None:
    for more in (True, False, False):
        socket.handle_reply({"type": "websocket.send", "text": "ab", "more": more})
    assert socket.transport.written == [b"abab", b"ab"]


def test_a_pong_does_not_wait_for_what_the_application_says_next(socket: Socket) -> None:
    socket.handle_reply({"type": "websocket.send", "text": "ab", "more": True})
    socket.sendData(b"pong")
    assert socket.transport.written == [b"abpong"]


def test_a_client_is_told_to_go_though_the_application_has_more_to_say(socket: Socket) -> None:
    socket.factory = SimpleNamespace(isServer=True)
    socket.maskServerFrames = socket.applyMask = socket.logFrames = False
    socket.trafficStats = TrafficStats()
    socket.handle_reply({"type": "websocket.send", "text": "ab", "more": True})
    socket.sendFrame(opcode=8, payload=b"bye")
    [written] = socket.transport.written
    assert written.startswith(b"ab") and len(written) > 2
