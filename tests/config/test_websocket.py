"""What a websocket may send, and what becomes of answers that nobody reads.

Each test comes from an address of its own: one whose socket was a flood opens no other for a while.
"""

from __future__ import annotations

import subprocess
import time

import httpx2
import pytest

from config.websocket import FRAMES_AT_ONCE
from tests.config.flood import CHUNK
from tests.config.rawsocket import RawSocket, frame
from tests.config.test_server import running_server, server  # noqa: F401  # the same server, under the same bounds
from tests.waiting import PATIENCE_S, quickest

pytestmark = pytest.mark.slow


def answered(port: int) -> float:
    """How long an ordinary request takes, in seconds."""
    began = time.monotonic()
    assert httpx2.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S).status_code == 200
    return time.monotonic() - began


def test_a_page_that_acknowledges_as_fast_as_it_shows_is_served(server):  # noqa: F811
    with RawSocket(server[0], "/echo", source="127.0.0.21") as page:
        for _ in range(300):
            page.send(b'{"type":"ack","seq":1}')
            assert page.receive() == b'{"type":"ack","seq":1}'
            time.sleep(0.002)


def test_a_flood_of_small_frames_closes_the_socket_and_stalls_nobody(server):  # noqa: F811
    with RawSocket(server[0], "/echo", source="127.0.0.22") as page:
        page.send(b"{}", 200_000)
        assert quickest(lambda _: answered(server[0]), 1.0) < 1.0
        assert page.close_code() in (1008, 0)


def test_what_is_said_to_a_client_that_was_told_to_go_is_no_fault_of_the_application():
    with running_server(stderr=subprocess.PIPE) as (port, process):
        with RawSocket(port, "/echo", source="127.0.0.23") as page:
            page.send(b"{}", 20_000)
            page.close_code(PATIENCE_S)
        time.sleep(2.0)  # the server looks once a second for applications that failed
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in said


def test_a_flood_of_pings_counts_too(server):  # noqa: F811
    with RawSocket(server[0], "/echo", source="127.0.0.24") as page:
        page.connection.sendall(frame(b"", opcode=9) * (3 * FRAMES_AT_ONCE))
        assert page.close_code() == 1008


def test_a_flood_is_not_let_in_again_and_its_neighbour_is(server):  # noqa: F811
    with RawSocket(server[0], "/echo", source="127.0.0.40") as page:
        page.connection.sendall(frame(b"", opcode=9) * (3 * FRAMES_AT_ONCE))
        assert page.close_code() == 1008
    with RawSocket(server[0], "/echo", source="127.0.0.40") as page:
        assert page.status == 429
    with RawSocket(server[0], "/echo", source="127.0.0.41") as page:
        assert page.status == 101


def test_a_flood_of_large_frames_closes_the_socket(server):  # noqa: F811
    with RawSocket(server[0], "/echo", source="127.0.0.25") as page:
        try:
            page.send(b"x" * 200_000, 20)
        except OSError:
            return  # cut off while it was still sending
        assert page.close_code() in (1008, 0)


def test_answers_that_nobody_reads_do_not_pile_up(server):  # noqa: F811
    port, process = server
    before = process.memory_info().rss
    with RawSocket(port, "/loud", source="127.0.0.26") as page:
        page.send(b"{}", FRAMES_AT_ONCE - 100)  # 50 MB of answers
        time.sleep(1.0)
        assert process.memory_info().rss - before < 8 * len(CHUNK) + (8 << 20)
        assert quickest(lambda _: answered(port), 1.0) < 1.0


def test_frames_that_the_application_has_not_obeyed_are_not_read(server):  # noqa: F811
    port, _ = server
    with RawSocket(port, "/slow", source="127.0.0.27") as page:
        page.send(b"{}", 200)
        for _ in range(200):  # none is lost: reading goes on as the application does
            assert page.receive() == b"{}"
