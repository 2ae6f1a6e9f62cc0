"""How the connections are shared out, and how long a request may take to arrive."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import daphne.server  # noqa: F401  # must be the first to import Twisted's reactor
import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web import http

from config import bounds
from config.bounds import Bucket, Census, connection_census
from config.channel import BODY_BYTES_A_S, BODY_S, HEAD_S, Channel
from tests.config.test_server import ROOT, connection, read_all, server  # noqa: F401
from tools.ports import free_port


def test_a_bucket_gives_what_it_holds_and_refills(monkeypatch):
    now = 100.0
    monkeypatch.setattr(bounds, "monotonic", lambda: now)
    bucket = Bucket(rate=10, burst=5)
    assert [bucket.take(1) for _ in range(6)] == [True] * 5 + [False]
    now += 0.2
    assert [bucket.take(1) for _ in range(3)] == [True, True, False]


def test_an_address_has_its_part_and_no_more():
    census = Census(per_address=2, altogether=3)
    assert [census.enter("a") for _ in range(3)] == [True, True, False]
    assert [census.enter("b"), census.enter("b")] == [True, False]  # all are taken
    census.leave("a")
    assert census.enter("b")
    assert census.total == 3


def test_whoever_speaks_for_many_is_counted_in_all_only():
    census = Census(per_address=1, altogether=3)
    assert [census.enter("") for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("descriptors", "altogether", "each"), [(300, 172, 43), (1024, 896, 200), (64, 16, 4)]
)
def test_connections_leave_descriptors_for_the_rest_of_the_process(descriptors, altogether, each):
    census = connection_census(descriptors)
    assert (census.altogether, census.per_address) == (altogether, each)


def open_from(source: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


@pytest.mark.slow
def test_connections_of_one_address_leave_room_for_others(server):  # noqa: F811
    port, _ = server
    held = [open_from("127.0.0.2", port) for _ in range(connection_census().per_address + 5)]
    try:
        time.sleep(0.3)
        with connection(port) as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert read_all(other).startswith(b"HTTP/1.1 200")
        held[-1].settimeout(2)
        assert held[-1].recv(1) == b""  # the last ones were closed at once
    finally:
        for one in held:
            one.close()


def channel_on(clock: Clock) -> tuple[Channel, StringTransport]:
    """A connection whose time is `clock`'s."""
    found = Channel()
    found.factory = SimpleNamespace(body_bytes=1 << 20, left=lambda _: None, log=lambda _: None)
    found.requestFactory = Unanswered
    found.callLater = clock.callLater
    transport = StringTransport()
    found.makeConnection(transport)
    return found, transport


class Unanswered(http.Request):
    def process(self) -> None:
        """Whoever asked waits."""


def feed(channel: Channel, clock: Clock, data: bytes, seconds: float) -> None:
    """Sends `data` byte by byte over that time."""
    for byte in data:
        channel.dataReceived(bytes([byte]))
        clock.advance(seconds / len(data))


def test_a_head_that_comes_byte_by_byte_has_its_deadline():
    channel, transport = channel_on(clock := Clock())
    feed(channel, clock, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: yyyyyyyyyy", HEAD_S - 1)
    assert not transport.disconnected
    clock.advance(1.1)
    assert transport.disconnected


def test_a_body_has_time_by_its_size():
    channel, transport = channel_on(clock := Clock())
    channel.dataReceived(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
    clock.advance(BODY_S + 100_000 / BODY_BYTES_A_S - 0.5)
    assert not transport.disconnected
    clock.advance(1.0)
    assert transport.disconnected


def test_an_answer_may_take_as_long_as_it_takes():
    channel, transport = channel_on(clock := Clock())
    channel.dataReceived(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    clock.advance(3600)
    assert not transport.disconnected


def test_the_root_of_the_application_is_not_for_a_client_to_set(server):  # noqa: F811
    with connection(server[0]) as found:
        head = b"GET /root HTTP/1.1\r\nHost: x\r\nDaphne-Root-Path: /x\r\nConnection: close\r\n\r\n"
        found.sendall(head)
        assert read_all(found).endswith(b"\r\n\r\n")  # an empty root path, and no more


def test_a_root_path_that_is_no_text_is_no_error(server):  # noqa: F811
    with connection(server[0]) as found:
        head = b"GET /root HTTP/1.1\r\nHost: x\r\nDaphne-Root-Path: \xff\r\nConnection: close\r\n\r\n"
        found.sendall(head)
        assert read_all(found).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_stop_ends_what_answers_though_somebody_has_not_finished_asking(tmp_path):
    """Else the half of a request keeps every other application from hearing that it is over."""
    port = free_port()
    command = [sys.executable, "-m", "config.server", "-p", str(port), "tests.config.flood:application"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                half = open_from("127.0.0.1", port)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        time.sleep(0.3)
        process.terminate()
        _, said = process.communicate(timeout=10)
        assert b"KeyError" not in said
        half.close()
    finally:
        process.kill()
