"""What the server takes in and what it holds back, over plain sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from config.server import BODY_BYTES
from tests.config.flood import CHUNK, CHUNKS, PIECE
from tests.waiting import wait_until
from tools.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
TOTAL = len(CHUNK) * CHUNKS


@contextmanager
def running_server(**options: Any) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    port = free_port()
    command = [sys.executable, "-m", "config.server", "-p", str(port), "tests.config.flood:application"]
    process = subprocess.Popen(command, cwd=ROOT, text=True, **options)
    try:
        wait_until(lambda: answers(port))
        yield port, process
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, psutil.Process]]:
    with running_server() as (port, process):
        yield port, psutil.Process(process.pid)


def answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/", timeout=10).status_code == 200
    except httpx2.TransportError:
        return False


@contextmanager
def connection(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as found:
        yield found


def read_all(found: socket.socket) -> bytes:
    parts = []
    while part := found.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.slow
def test_a_body_within_the_limit_arrives_whole(server):
    answer = httpx2.post(f"http://127.0.0.1:{server[0]}/", content=b"x" * BODY_BYTES)
    assert (answer.status_code, answer.text) == (200, str(BODY_BYTES))


def test_a_body_that_says_it_is_too_large_is_refused_before_any_of_it_is_sent(server):
    with connection(server[0]) as found:
        found.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        answer = read_all(found)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code": "request_too_large"' in answer


def test_a_client_that_sends_all_of_it_first_still_reads_why(server):
    answer = httpx2.post(f"http://127.0.0.1:{server[0]}/", content=b"x" * (4 * BODY_BYTES))
    assert answer.status_code == 413


def test_a_body_in_pieces_is_refused_once_they_are_too_many(server):
    answer = httpx2.post(f"http://127.0.0.1:{server[0]}/", content=(b"x" * 65536 for _ in range(40)))
    assert answer.status_code == 413


def test_whoever_goes_on_sending_is_cut_off(server):
    with connection(server[0]) as found, pytest.raises(OSError):
        found.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        for _ in range(4000):
            found.sendall(b"x" * 65536)


@pytest.mark.slow
def test_a_client_that_does_not_read_makes_the_application_wait(server):
    port, process = server
    before = process.memory_info().rss
    with connection(port) as found:
        found.sendall(b"GET /flood HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(1.0)
        taken = int(httpx2.get(f"http://127.0.0.1:{port}/taken").text)
        grown = process.memory_info().rss - before
        assert taken * len(CHUNK) < TOTAL / 4  # what the kernel's buffers on loopback take
        assert grown < TOTAL / 8
        assert len(read_all(found)) > TOTAL  # and reading brings the rest


@pytest.mark.slow
def test_an_application_whose_client_leaves_in_mid_answer_is_not_disturbed(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as opened, running_server(stderr=opened) as (port, _):
        with connection(port) as found:
            found.sendall(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
            assert found.recv(1 << 16)
            time.sleep(0.3)  # the application waits for room by now
        wait_until(lambda: httpx2.get(f"http://127.0.0.1:{port}/floods").text == "1", timeout_s=20)
        time.sleep(1.2)  # daphne looks once a second at how applications ended
    said = log.read_text()
    assert "http_complete" in said
    assert "Exception" not in said and "Traceback" not in said


def test_a_second_request_is_answered_after_a_large_answer_that_is_read_late(server):
    port, _ = server
    with connection(port) as found:
        found.sendall(b"GET /piece HTTP/1.1\r\nHost: x\r\n\r\n")
        found.sendall(b"GET /begun HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.3)
        _, first, second = read_all(found).split(b"HTTP/1.1 200 ")
    assert first.endswith(PIECE + b"\r\n0\r\n\r\n")
    assert second.endswith(b"\r\n\r\n1\r\n1\r\n0\r\n\r\n")


@pytest.mark.parametrize("path", ["/piece", "/flood"])
def test_the_answer_to_head_has_no_content(server, path):
    with connection(server[0]) as found:
        found.sendall(f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = read_all(found)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n") and answer.count(b"\r\n\r\n") == 1


def test_a_large_answer_in_one_piece_ends_as_soon_as_it_has_been_read(server):
    port, _ = server
    before = pieces(port)
    with connection(port) as found:
        found.sendall(b"GET /piece HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.3)  # it fills the kernel's buffers
        assert pieces(port) == before
        assert len(read_all(found)) > len(PIECE)
    wait_until(lambda: pieces(port) == before + 1)


def pieces(port: int) -> int:
    return int(httpx2.get(f"http://127.0.0.1:{port}/pieces").text)


@pytest.mark.slow
def test_a_server_that_stops_waits_for_all_that_it_ends():
    """Not for the first only: the last may be a page's socket that still has a row to write."""
    with running_server(stdout=subprocess.PIPE) as (port, process), ExitStack() as stack:
        for seconds in (0.0, 0.5, 1.0):
            found = stack.enter_context(connection(port))
            found.sendall(f"GET /farewell/{seconds} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_until(lambda: httpx2.get(f"http://127.0.0.1:{port}/taken").text == "3")
        process.terminate()
        said, _ = process.communicate(timeout=60)
    assert said.split() == ["farewell"] * 3


def test_an_application_hears_that_the_process_begins(server):
    port, _ = server
    assert httpx2.get(f"http://127.0.0.1:{port}/begun").text == "1"
