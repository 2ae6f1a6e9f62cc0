"""How much of one socket is taken in one turn of the event loop: others come between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import daphne.server  # noqa: F401  # must be the first to import Twisted's reactor
import pytest
from twisted.internet.testing import StringTransport

from config import bounds, websocket
from config.bounds import Exclusions
from config.server import Sockets
from config.websocket import (
    BYTES_AT_ONCE,
    DRAIN_S,
    FRAMES_A_TURN,
    FRAMES_AT_ONCE,
    LAST_WORD_S,
    MESSAGE_BYTES,
    WAITING_FRAMES,
    Socket,
)
from tests.config.rawsocket import frame

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n"
)
PEER = "192.168.1.1"  # of a StringTransport: no proxy that is trusted


class Loop:
    """An event loop's timer. What is called for at once is called in the next turn."""

    def __init__(self) -> None:
        self._now = 0.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def callLater(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        self._calls.append((self._now + seconds, partial(call, *arguments)))

    def turn(self, seconds: float = 0.0) -> None:
        self._now += seconds
        due = [call for at, call in self._calls if at <= self._now]
        self._calls = [(at, call) for at, call in self._calls if at > self._now]
        for call in due:
            call()


@pytest.fixture
def loop(monkeypatch) -> Loop:
    found = Loop()
    monkeypatch.setattr(websocket, "reactor", found)
    return found


@pytest.fixture
def excluded() -> Exclusions:
    return Exclusions(10, 100)


@pytest.fixture
def page(loop, excluded) -> Socket:
    """An open socket, whose application has begun."""
    server = SimpleNamespace(
        http_factory=SimpleNamespace(excluded=excluded, left=lambda _: None),
        root_path="",
        proxy_forwarded_address_header=None,
        create_application=lambda *_: asyncio.Queue(),
        log_action=lambda *_: None,
        protocol_connected=lambda _: None,
        protocol_disconnected=lambda _: None,
    )
    found, transport = Sockets(server).buildProtocol(None), Transport()
    found._raw_query_string = b""
    transport.registerProducer(found, True)  # as the HTTP channel has, whose connection it was
    found.makeConnection(transport)
    found.dataReceived(HANDSHAKE)
    found.serverAccept()
    assert found.application_queue.get_nowait()["type"] == "websocket.connect"
    transport.clear()
    return found


class Transport(StringTransport):
    def abortConnection(self) -> None:
        self.aborting = True
        super().abortConnection()


def obeyed(page: Socket) -> int:
    """What its application gets to obey now."""
    count = page.application_queue.qsize()
    while not page.application_queue.empty():
        page.application_queue.get_nowait()
    return count


def test_a_socket_has_a_few_frames_in_each_turn(page, loop):
    page.dataReceived(frame(b"{}", opcode=1) * 50)
    taken = [obeyed(page)]
    for _ in range(12):
        assert page.transport.producerState == "paused"  # nothing more is read meanwhile
        loop.turn()
        taken.append(obeyed(page))
    assert (max(taken), sum(taken)) == (FRAMES_A_TURN, 50)
    loop.turn()
    assert page.transport.producerState == "producing"


def test_what_the_application_has_not_obeyed_bounds_what_is_taken(page, loop):
    page.dataReceived(frame(b"{}", opcode=1) * 200)
    for _ in range(100):
        loop.turn(DRAIN_S)
    assert page.application_queue.qsize() == WAITING_FRAMES
    obeyed(page)
    loop.turn(DRAIN_S)
    assert page.application_queue.qsize() == FRAMES_A_TURN


def test_pings_have_their_turns_too(page, loop):
    page.dataReceived(frame(b"", opcode=9) * 50)
    assert page.transport.value().count(b"\x8a\x00") == FRAMES_A_TURN


def test_a_flood_ends_within_its_burst_and_is_shut_out(page, loop, excluded, monkeypatch):
    now = bounds.monotonic()
    monkeypatch.setattr(bounds, "monotonic", lambda: now)
    page.dataReceived(frame(b"{}", opcode=1) * 2000)
    turns = 0
    while page.state == page.STATE_OPEN and turns < 1000:
        obeyed(page)
        loop.turn()
        turns += 1
    assert turns == FRAMES_AT_ONCE // FRAMES_A_TURN
    assert excluded.left_s(PEER) > 0
    assert not excluded.left_s("203.0.113.7")
    loop.turn(LAST_WORD_S)
    assert page.transport.aborting


def test_an_application_that_says_a_rule_was_broken_shuts_out_too(page, excluded):
    page.serverClose(1008)
    assert page.state == page.STATE_CLOSING
    assert excluded.left_s(PEER) > 0


def test_any_other_end_shuts_nobody_out(page, excluded):
    page.serverClose(4408)
    assert not excluded.left_s(PEER)


def in_pieces(size: int, pieces: int) -> bytes:
    """One message of `size` bytes, as browsers send a long one."""
    part, last = b"x" * (size // pieces), pieces - 1
    return b"".join(frame(part, opcode=0 if n else 1, final=n == last) for n in range(pieces))


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("size", [MESSAGE_BYTES + 64, 2 * BYTES_AT_ONCE])
def test_a_message_that_is_too_large_ends_the_socket_and_shuts_nobody_out(page, loop, excluded, size, pieces):
    page.dataReceived(in_pieces(size, pieces))
    assert page.state == page.STATE_CLOSING
    assert b"\x03\xf1" in page.transport.value()  # close code 1009
    assert not excluded.left_s(PEER)
    loop.turn(LAST_WORD_S)
    assert page.transport.aborting


def test_a_large_message_reaches_the_application_which_says_what_is_wrong(page):
    page.dataReceived(in_pieces(MESSAGE_BYTES, 1))
    assert (page.state, obeyed(page)) == (page.STATE_OPEN, 1)


def test_large_messages_without_end_are_a_flood(page, excluded):
    for _ in range(BYTES_AT_ONCE // MESSAGE_BYTES + 2):
        page.dataReceived(in_pieces(MESSAGE_BYTES, 1))
    assert excluded.left_s(PEER) > 0
