"""The API's shorter way through Django: the same answers with the same guards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.signals import request_finished
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import ResolverMatch, URLResolver
from django.urls import path as route

from config.api_handler import ApiHandler
from playground.keys import find_key
from tests.waiting import until

OF_PAGES = {"Vary"}


class Views:
    """What a request does here, and on which threads it was."""

    def __init__(self) -> None:
        self.waits = False
        self.connected: list[int] = []
        self.finished: list[int] = []

    def note_connection(self, **_kwargs: Any) -> None:
        self.connected.append(threading.get_ident())

    def note_end(self, **_kwargs: Any) -> None:
        self.finished.append(threading.get_ident())

    async def answer(self, _request: HttpRequest, path: str) -> HttpResponse:
        if "key" in path:
            await find_key("ml-nobody")
        if "wait" in path:
            self.waits = True
            await asyncio.Event().wait()
        return HttpResponse("")


@pytest.fixture
def views(settings: Any) -> Iterator[Views]:
    found = Views()
    settings.ROOT_URLCONF = (route("<path:path>", found.answer),)
    connection_created.connect(found.note_connection)
    request_finished.connect(found.note_end)
    yield found
    request_finished.disconnect(found.note_end)
    connection_created.disconnect(found.note_connection)


async def ask(path: str, host: str = "testserver") -> tuple[int, dict[str, str]]:
    application = begin(path, host)
    await application.send_input({"type": "http.request", "body": b""})
    start = await application.receive_output(5)
    await application.receive_output(5)
    await application.wait(5)
    return start["status"], {name.decode().title(): value.decode() for name, value in start["headers"]}


def begin(path: str, host: str = "testserver") -> ApplicationCommunicator:
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", host.encode())],
        "client": ("127.0.0.1", 4),
        "server": ("127.0.0.1", 80),
    }
    return ApplicationCommunicator(ApiHandler(), scope)


async def test_an_answer_has_the_headers_that_pages_have() -> None:
    status, headers = await ask("/v1/nothing")
    page = await AsyncClient().get("/v1/nothing")
    assert status == page.status_code == 404
    assert headers == {name: value for name, value in page.headers.items() if name not in OF_PAGES}
    assert {"Content-Security-Policy", "Permissions-Policy", "X-Frame-Options"} <= set(headers)


@pytest.mark.parametrize("host", ["evil.example", "testserver:x"])
async def test_a_request_for_another_host_is_refused(host: str) -> None:
    status, _ = await ask("/v1/nothing", host)
    assert status == 400


@pytest.mark.django_db(transaction=True)
async def test_a_request_with_a_key_ends_on_the_thread_that_asked_the_database(views: Views) -> None:
    assert (await ask("/v1/key"))[0] == 200
    [thread] = views.connected
    assert views.finished == [thread] != [threading.get_ident()]


@pytest.mark.django_db(transaction=True)
async def test_a_request_that_asks_no_database_starts_no_thread(views: Views) -> None:
    assert (await ask("/v1/nothing"))[0] == 200
    assert (views.connected, views.finished) == ([], [threading.get_ident()])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/v1/wait", "/v1/key/wait"])
async def test_a_request_whose_client_leaves_ends_where_it_asked_the_database(
    views: Views, path: str
) -> None:
    application = begin(path)
    await application.send_input({"type": "http.request", "body": b""})
    await until(lambda: asyncio.sleep(0, views.waits))
    await application.send_input({"type": "http.disconnect"})
    await application.wait(5)
    assert views.finished == (views.connected or [threading.get_ident()])


async def test_a_path_is_looked_up_among_the_patterns_once(
    views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    resolve = URLResolver.resolve

    def note(self: URLResolver, path: str) -> ResolverMatch:
        looked_up.append(path)
        return resolve(self, path)

    monkeypatch.setattr(URLResolver, "resolve", note)
    for path in ("/v1/once", "/v1/other", "/v1/once"):
        assert (await ask(path))[0] == 200
    assert looked_up == ["/v1/once", "/v1/other"]
