"""A websocket carries no CSRF token: the origin of the page that opens it counts."""

from __future__ import annotations

import pytest
from channels.testing import WebsocketCommunicator

from tests.playground.conftest import ORIGIN


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", b"http://localhost.evil.example:8000"])
async def test_a_foreign_page_cannot_open_the_socket(transactional_db, origin):
    from config.asgi import application

    headers = [(b"host", b"localhost:8000"), (b"origin", origin)]
    socket = WebsocketCommunicator(application, "/ws/playground/", headers=headers)
    connected, code = await socket.connect(timeout=5)
    assert (connected, code) == (False, 1000)


async def test_our_own_page_can(open_page, worker):
    async with open_page(origin=ORIGIN):
        pass
