"""Clients that flood, hang and guess passwords, and what everybody else notices of it."""

from __future__ import annotations

import http.client
import re
import socket
import statistics
import threading
import time
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.config.rawsocket import frame
from tests.faults.pages import Socket, session_of, source_address
from tests.faults.product import Product, at_the_same_time
from tests.waiting import PATIENCE_S, wait_until

BYTES_A_S = 1_000_000
PROBE_EVERY_S = 0.05
VISITOR = source_address(240)
TINY = frame(b"{}", opcode=1)
LARGE = frame(b'{"type": "' + b"x" * 200_000 + b'"}', opcode=1)


@dataclass
class Hostile:
    healthz_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """Between the token frames of a stream that is watched meanwhile."""
    unanswered: int = 0
    """Of the requests for /healthz."""
    grown_bytes: int = 0
    closed_s: list[float] = field(default_factory=list)
    """From a flood's beginning until its socket was closed."""
    half_open: int = 0
    half_open_left: int = 0
    sign_ins: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()


def run(product: Product, *, seconds: float, half_open: int, sign_ins: int) -> Hostile:
    """Ten floods, `half_open` requests that never end and `sign_ins` guessers, for so long."""
    port, found = product.ports[0], Hostile()
    before = product.memory("web-0")
    floods = [
        _flood(port, found, kind, number) for number, kind in enumerate(("tiny", "large", "unread") * 3)
    ]
    floods.append(_flood(port, found, "tiny", 9))
    guesses = [_guesser(port, found, number) for number in range(sign_ins)]
    with at_the_same_time(_probe(port, found), _watch(port, found)):
        time.sleep(1.0)
        with at_the_same_time(*floods, *guesses, _half_open(port, found, half_open)):
            time.sleep(seconds)
            wait_until(lambda: found.closed_s)
    found.grown_bytes = product.memory("web-0") - before
    return found


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


Work = Callable[[threading.Event], object]


def _flood(port: int, found: Hostile, kind: str, number: int) -> Work:
    """Sends BYTES_A_S until it is cut off, again and again; `unread` never reads an answer."""
    address = source_address(200 + number)
    payload = {"tiny": TINY * 12_500, "large": LARGE, "unread": TINY * 12_500}[kind]

    def flood(stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                began, opened = time.monotonic(), Socket(port, "", address)
            except OSError:
                stopping.wait(0.2)
                continue
            try:
                opened.connection.settimeout(5)
                while not stopping.is_set():
                    opened.connection.sendall(payload)
                    time.sleep(len(payload) / BYTES_A_S)
                    if kind != "unread":
                        _drain(opened.connection)
            except OSError:
                with found._lock:
                    found.closed_s.append(time.monotonic() - began)
            finally:
                opened.connection.close()
            stopping.wait(0.2)

    return flood


def _drain(connection: socket.socket) -> None:
    """Reads what is there. Raises ConnectionError at the end of the connection."""
    connection.setblocking(False)
    try:
        while True:
            if not connection.recv(1 << 16):
                raise ConnectionError
    except BlockingIOError:
        pass
    finally:
        connection.settimeout(5)


def _half_open(port: int, found: Hostile, count: int) -> Work:
    """Heads of requests that get a byte now and then, from several addresses."""

    def hang(stopping: threading.Event) -> None:
        held: list[socket.socket] = []
        for number in range(count):
            with suppress(OSError):
                address = source_address(220 + number % 5)
                one = socket.create_connection(("127.0.0.1", port), 5, source_address=(address, 0))
                one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
                held.append(one)
        found.half_open = len(held)
        while not stopping.wait(2.0):
            for one in list(held):
                try:
                    one.sendall(b"x")
                except OSError:
                    held.remove(one)
                    one.close()
        found.half_open_left = len(held)
        for one in held:
            one.close()

    return hang


def _guesser(port: int, found: Hostile, number: int) -> Work:
    """Wrong passwords for a name of its own, all from one address."""
    address = source_address(230)

    def guess(stopping: threading.Event) -> None:
        while not stopping.is_set():
            connection = http.client.HTTPConnection(
                "127.0.0.1", port, timeout=30, source_address=(address, 0)
            )
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/dashboard/sign-in/")
                answer = connection.getresponse()
                cookie = (answer.headers.get("Set-Cookie") or "").split(";")[0]
                token = re.search(rb'csrfmiddlewaretoken" value="(\w+)"', answer.read())
                fields = {"username": f"u{number}", "password": "wrong"}
                fields["csrfmiddlewaretoken"] = token[1].decode() if token else ""
                form = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
                connection.request("POST", "/dashboard/sign-in/", urllib.parse.urlencode(fields), form)
                connection.getresponse().read()
                with found._lock:
                    found.sign_ins += 1
            connection.close()

    return guess


def _probe(port: int, found: Hostile) -> Work:
    def probe(stopping: threading.Event) -> None:
        while not stopping.wait(PROBE_EVERY_S):
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            try:
                connection.request("GET", "/healthz")
                status = connection.getresponse().status
            except OSError:
                status = 0
            finally:
                connection.close()
            found.healthz_s.append(time.monotonic() - began)
            found.unanswered += status != 200

    return probe


def _watch(port: int, found: Hostile) -> Work:
    """A visitor's stream, one after another, and the time between its frames."""

    def watch(stopping: threading.Event) -> None:
        page = Socket(port, session_of(port, VISITOR), VISITOR)
        while not stopping.is_set():
            page.say(type="start", prompt="to", max_tokens=20_000)
            last = 0.0
            while (heard := page.hear(PATIENCE_S)) is not None and heard["type"] != "done":
                assert heard["type"] != "error", heard
                now = time.monotonic()
                if heard["type"] != "tokens":
                    continue
                if last:
                    found.gaps_s.append(now - last)
                last = now
                page.say(type="ack", seq=heard["seq"] + heard["n"])
                if stopping.is_set():
                    page.say(type="stop")
        page.connection.close()

    return watch
