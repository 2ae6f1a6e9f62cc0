"""Every URL and socket, for every kind of caller, with the site open and closed: as `perimeter.txt` says.

After a change that is meant: `WRITE_PERIMETER=1 python -m pytest tests/config/test_perimeter.py`, and read
the difference.
"""

from __future__ import annotations

import os

import pytest
from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session

from tests.config.perimeter import (
    CLOSED,
    COLUMNS,
    HOST,
    OPEN,
    PROBE,
    SOCKETS,
    Caller,
    admin_routes,
    column_of,
    make_callers,
    path_of,
    read_table,
    routes,
    write_table,
)
from tests.playground.conftest import project, worker  # noqa: F401  # this test's Redis, plain static files

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("worker")]
FOUND: dict[str, dict[str, str]] = {}
ADDRESS_HEADERS = {
    "Daphne-Root-Path": "/dashboard",
    "X-Forwarded-For": "127.0.0.1",
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-Proto": "https",
    "X-Original-URL": "/metrics",
}


@pytest.fixture
def closed(settings):
    for name, value in CLOSED.items():
        setattr(settings, name, value)


@pytest.mark.parametrize("column", COLUMNS)
async def test_each_caller_gets_what_the_table_says(column, settings):
    state, _, name = column.partition(":")
    for setting, value in (OPEN if state == "open" else CLOSED).items():
        setattr(settings, setting, value)
    callers = await sync_to_async(make_callers)()
    FOUND[column] = await column_of(callers[name])
    if os.environ.get("WRITE_PERIMETER"):
        if len(FOUND) == len(COLUMNS):
            write_table(FOUND)
        return
    assert FOUND[column] == {row: columns[column] for row, columns in read_table().items()}


def test_every_route_and_socket_has_its_row():
    listed = {row.partition(" ")[2].removeprefix("/") for row in read_table()}
    assert listed == {*routes(), *SOCKETS, PROBE}


async def test_the_admin_sends_everybody_but_the_staff_to_its_sign_in(closed):
    callers = await sync_to_async(make_callers)()
    paths = {path_of(route) for route in admin_routes() if "(?P<" not in route}
    assert len(paths) > 50
    for name in ("stranger", "runner", "key"):
        for path in sorted(paths - {"/admin/login/", "/admin/logout/"}):
            response = await callers[name].ask("GET", path)
            assert (response.status_code, "/admin/login/" in response.headers["Location"]) == (302, True), (
                path
            )


async def test_headers_that_only_a_proxy_may_send_open_nothing(closed):
    caller, table = Caller(), read_table()
    for row, columns in table.items():
        method, _, route = row.partition(" /")
        if method == "GET":
            response = await caller.ask(method, path_of(route), **ADDRESS_HEADERS)
            shown = "sign-in" if "sign-in" in response.headers.get("Location", "") else response.status_code
            assert str(shown) == columns["closed:stranger"], row


@pytest.mark.parametrize(
    "origin", ["https://" + HOST, "http://localhost:8001", "http://localhost", "http://evil.example", "null"]
)
async def test_another_site_s_page_changes_nothing_and_opens_no_socket(origin):
    caller = (await sync_to_async(make_callers)())["staff"]
    for row, columns in read_table().items():
        method, _, route = row.partition(" /")
        takes_forms = columns["closed:staff"] != "405" and not route.startswith(("v1/", "api/", "tokenize"))
        if method == "POST" and takes_forms:
            response = await caller.ask(method, path_of(route), Origin=origin)
            assert response.status_code == 403, row
    for path in SOCKETS:
        assert not await caller.connects(f"/{path}", origin=origin)


async def test_what_an_account_sees_is_kept_by_no_cache_and_every_answer_is_guarded(closed):
    callers = await sync_to_async(make_callers)()
    for route in routes():
        for name in ("stranger", "staff"):
            response = await callers[name].ask("GET", path_of(route))
            headers = response.headers
            assert headers["X-Content-Type-Options"] == "nosniff", route
            assert "camera=()" in headers["Permissions-Policy"], route
            assert "default-src" in headers["Content-Security-Policy"], route
            is_page = response.status_code == 200 and headers["Content-Type"].startswith("text/html")
            if name == "staff" and is_page and route != "sandbox/":  # which is the same for everybody
                assert "no-store" in headers["Cache-Control"], route
            for cookie in headers.get_list("set-cookie"):
                assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Path=/" in cookie, route


async def test_a_closed_site_gives_strangers_no_session(closed):
    for route in routes():
        await Caller().ask("GET", path_of(route))
    assert await Session.objects.acount() == 0
