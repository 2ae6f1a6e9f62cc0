"""How an answer is written: each write wakes whoever reads, and costs two turns of the system."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web.http import HTTPFactory, Request

from config.channel import BODY_S, HEAD_S, Channel


class Transport(StringTransport):  # type: ignore[misc]  # Twisted has no types
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)


class Answer(Request):  # type: ignore[misc]
    def process(self) -> None:
        self.setHeader(b"Content-Type", b"text/plain")
        if self.path == b"/whole":
            self.setHeader(b"Content-Length", b"5")
            self.write(b"hello")
        elif self.path == b"/pieces":
            self.write(b"he")
            self.write(b"llo")
        else:
            self.setResponseCode(204)
        self.finish()


WHOLE = b"GET /whole HTTP/1.1\r\nHost: x\r\n\r\n"


def connected(clock: Clock) -> Any:
    channel: Any = Channel()
    channel.factory, channel.requestFactory = HTTPFactory(reactor=clock), Answer
    channel.factory.body_bytes, channel.factory.log = 100, lambda _request: None
    channel.factory.left = lambda _address: None
    channel.callLater = clock.callLater
    channel.makeConnection(Transport())
    return channel


def writes_of(request: bytes) -> list[bytes]:
    channel = connected(Clock())
    channel.dataReceived(request)
    return list(channel.transport.writes)


def test_an_answer_is_one_write_with_its_head() -> None:
    [written] = writes_of(WHOLE)
    head, _, content = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert {b"Content-Type: text/plain", b"Content-Length: 5"} <= set(head.split(b"\r\n"))
    assert content == b"hello"


def test_the_head_of_a_stream_goes_with_its_first_piece() -> None:
    first, *more = writes_of(b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n")
    assert first.endswith(b"\r\n\r\n2\r\nhe\r\n")
    assert more == [b"3\r\nllo\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize("request_line", [b"HEAD /whole", b"GET /nothing"])
def test_an_answer_without_content_is_its_head(request_line: bytes) -> None:
    [written] = writes_of(request_line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert written.startswith(b"HTTP/1.1 20") and written.endswith(b"\r\n\r\n")


def test_a_head_that_is_there_at_once_sets_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = connected(Clock())
    channel.dataReceived(WHOLE)
    deadlines: list[float | None] = []
    monkeypatch.setattr(channel, "_expect", deadlines.append)
    channel.dataReceived(WHOLE)
    assert len(channel.transport.writes) == 2
    assert deadlines == [BODY_S, None], "the body's alone"


def test_a_later_head_that_does_not_end_is_cut_off() -> None:
    clock = Clock()
    channel = connected(clock)
    channel.dataReceived(WHOLE)
    for byte in b"GET /":
        channel.dataReceived(bytes([byte]))
        clock.advance(HEAD_S / 10)
    assert not channel.transport.disconnected
    clock.advance(HEAD_S / 2)
    assert channel.transport.disconnected


def test_a_connection_that_asks_nothing_more_is_not_cut_off() -> None:
    clock = Clock()
    channel = connected(clock)
    channel.dataReceived(WHOLE)
    clock.advance(2 * HEAD_S)
    assert not channel.transport.disconnected
