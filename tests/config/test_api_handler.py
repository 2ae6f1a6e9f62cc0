"""The API's shorter way through Django: the same answers with the same guards."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.test import AsyncClient

from config.api_handler import ApiHandler

OF_PAGES = {"Vary"}


async def ask(path: str, host: str = "testserver") -> tuple[int, dict[str, str]]:
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
    application = ApplicationCommunicator(ApiHandler(), scope)
    await application.send_input({"type": "http.request", "body": b""})
    start = await application.receive_output(5)
    await application.receive_output(5)
    await application.wait(5)
    return start["status"], {name.decode().title(): value.decode() for name, value in start["headers"]}


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
