"""A websocket carries no CSRF token: the origin of the page that opens it counts."""

from __future__ import annotations

import pytest
from channels.testing import WebsocketCommunicator

from config.sockets import is_own_origin
from tests.playground.conftest import ORIGIN
from tests.waiting import PATIENCE_S

FOREIGN = [
    b"https://evil.example",
    b"null",
    b"",
    b"http://localhost.evil.example:8000",
    b"http://localhost:3000",  # any other program of the visitor's machine
    b"https://localhost:8000",
    b"ftp://localhost:8000",
    b"http://user@localhost:8000",
]


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_foreign_page_cannot_open_the_socket(transactional_db, origin):
    from config.asgi import application

    headers = [(b"host", b"localhost:8000"), (b"origin", origin)]
    socket = WebsocketCommunicator(application, "/ws/playground/", headers=headers)
    connected, code = await socket.connect(timeout=PATIENCE_S)
    assert (connected, code) == (False, 1000)


async def test_our_own_page_can(open_page, worker):
    async with open_page(origin=ORIGIN):
        pass


def asked(origin: bytes, **headers: bytes) -> dict[str, object]:
    named = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return {
        "type": "websocket",
        "path": "/ws/playground/",
        "query_string": b"",
        "headers": [(b"host", b"play.example.com"), (b"origin", origin), *named],
    }


def test_behind_a_proxy_the_scheme_is_the_visitors(settings):
    settings.ALLOWED_HOSTS = ["play.example.com"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    assert is_own_origin(asked(b"https://play.example.com", x_forwarded_proto=b"https"))
    assert not is_own_origin(asked(b"http://play.example.com", x_forwarded_proto=b"https"))


def test_origins_that_are_named_may_too(settings):
    settings.ALLOWED_HOSTS = ["play.example.com"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://other.example:8443", "https://*.friends.example"]
    assert is_own_origin(asked(b"https://other.example:8443"))
    assert is_own_origin(asked(b"https://a.friends.example"))
    assert not is_own_origin(asked(b"https://other.example"))
    assert not is_own_origin(asked(b"http://a.friends.example"))


def test_a_host_that_is_not_ours_has_no_origin_of_ours(settings):
    settings.ALLOWED_HOSTS = ["localhost"]
    assert not is_own_origin(asked(b"http://play.example.com"))
