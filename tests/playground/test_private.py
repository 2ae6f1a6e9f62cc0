"""A playground that is not public, and sockets that are too many."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from tests.playground.conftest import ORIGIN, Page
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)
CLOSED = ["/", "/race/", "/g/", f"/g/{'x' * 22}/", f"/g/{'x' * 22}/card.png", f"/g/{'x' * 22}/0.txt"]


@pytest.fixture
def private(settings):
    settings.PLAYGROUND_PUBLIC = False


def socket_with(cookie: str = "", client: tuple[str, int] = ("192.0.2.1", 5)) -> WebsocketCommunicator:
    from config.asgi import application

    headers = [(b"host", b"localhost:8000"), (b"origin", ORIGIN), (b"cookie", cookie.encode())]
    socket = WebsocketCommunicator(application, "/ws/playground/", headers=headers)
    socket.scope["client"] = client
    return socket


@pytest.mark.parametrize("path", CLOSED)
async def test_a_stranger_is_sent_to_the_sign_in(async_client, private, path):
    response = await async_client.get(path)
    assert response.status_code == 302
    assert response["Location"].startswith("/dashboard/sign-in/?next=")
    assert await Session.objects.acount() == 0


async def test_the_socket_is_closed_to_strangers_too(private, worker):
    connected, _ = await socket_with().connect(timeout=PATIENCE_S)
    assert not connected


async def test_an_account_opens_page_and_socket(async_client, private, worker):
    user = await sync_to_async(User.objects.create_user)("ada", password="correct horse")
    await sync_to_async(async_client.force_login)(user)
    assert (await async_client.get("/")).status_code == 200
    socket = socket_with(f"sessionid={async_client.cookies['sessionid'].value}")
    connected, _ = await socket.connect(timeout=PATIENCE_S)
    assert connected
    assert (await Page(socket).hear_status())["type"] == "status"
    await socket.disconnect()


async def test_a_visitor_has_only_so_many_sockets(worker, settings):
    settings.LIMIT_SOCKETS = (2, 3)
    open_ones = [socket_with(), socket_with()]
    for one in open_ones:
        assert (await one.connect(timeout=PATIENCE_S))[0]
    assert not (await socket_with().connect(timeout=PATIENCE_S))[0]
    other = socket_with(client=("192.0.2.2", 5))
    assert (await other.connect(timeout=PATIENCE_S))[0]
    assert not (await socket_with(client=("192.0.2.3", 5)).connect(timeout=PATIENCE_S))[0]  # all are taken
    for one in [*open_ones, other]:
        await one.disconnect()
    again = socket_with()
    assert (await again.connect(timeout=PATIENCE_S))[0]
    await again.disconnect()
