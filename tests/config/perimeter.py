"""Who gets what from which URL and socket: the callers, the settings, and what is asked of each route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import URLPattern, get_resolver

from config.alive import ALIVE
from dashboard.accounts import groups
from playground.keys import make_key
from tests.waiting import PATIENCE_S

TABLE = Path(__file__).with_suffix(".txt")
HOST = "localhost:8000"
STRANGER, MONITOR = "192.0.2.1", "127.0.0.1"
CLOSED = {"PLAYGROUND_PUBLIC": False, "DASHBOARD_PUBLIC": False, "API_KEY_REQUIRED": True}
OPEN = {"PLAYGROUND_PUBLIC": True, "DASHBOARD_PUBLIC": True, "API_KEY_REQUIRED": False}
COLUMNS = ("open:stranger", "closed:stranger", "closed:monitor", "closed:reader", "closed:runner",
           "closed:staff", "closed:key")  # fmt: skip
TOKEN = "c" * 32
ROW_PARTS = {
    "<export:form>": "csv",
    "<key:pk>": "1",
    "<pk>": "1",
    "<path:path>": "nothing",
    "<path:name>": "nothing",
    "<path:unknown>": "nothing",
    "<share:share>": "x" * 22,
    "<int:place>": "0",
}
SOCKETS = ("ws/playground/", "ws/dashboard/")
PROBE = ALIVE.removeprefix("/")
"""Answered before Django, so no route."""


@dataclass
class Caller:
    """Someone who asks: from an address, with the cookies and headers of who it is."""

    address: str = STRANGER
    headers: dict[str, str] = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def client(self) -> Iterator[httpx2.AsyncClient]:
        from config.asgi import application

        transport = httpx2.ASGITransport(
            app=application, client=(self.address, 5), raise_app_exceptions=False
        )
        yield httpx2.AsyncClient(
            transport=transport,
            base_url=f"http://{HOST}",
            headers={**self.headers, "X-CSRFToken": TOKEN},
            cookies={**self.cookies, "csrftoken": TOKEN},
        )

    async def ask(self, method: str, path: str, **headers: str) -> httpx2.Response:
        """With a form's token; the body is an empty JSON object, which nothing accepts."""
        with self.client() as client:
            body = b"{}" if method == "POST" else None
            return await client.request(
                method, path, content=body, headers={"Content-Type": "application/json", **headers}
            )

    async def connects(self, path: str, origin: str = f"http://{HOST}", **headers: str) -> bool:
        from config.asgi import application

        sent = {
            "host": HOST,
            "origin": origin,
            "cookie": "; ".join("=".join(c) for c in self.cookies.items()),
        }
        encoded = [(name.encode(), value.encode()) for name, value in {**sent, **headers}.items()]
        socket = WebsocketCommunicator(application, path, headers=encoded)
        socket.scope["client"] = (self.address, 5)
        connected, _ = await socket.connect(timeout=PATIENCE_S)
        await socket.disconnect(timeout=PATIENCE_S)
        return connected


def make_callers() -> dict[str, Caller]:
    """One of each kind. `reader` is an account without rights, `runner` may run sweeps, `staff` may all."""
    groups.ensure()
    runner = User.objects.create_user("runner")
    runner.groups.add(Group.objects.get(name="Benchmarks: run"))
    staff = User.objects.create_superuser("staff")
    _, key = make_key(name="perimeter")
    return {
        "stranger": Caller(),
        "monitor": Caller(MONITOR),
        "reader": Caller(cookies=_signed_in(User.objects.create_user("reader"))),
        "runner": Caller(cookies=_signed_in(runner)),
        "staff": Caller(cookies=_signed_in(staff)),
        "key": Caller(headers={"Authorization": f"Bearer {key}"}),
    }


def _signed_in(user: User) -> dict[str, str]:
    client = Client()
    client.force_login(user)
    return {"sessionid": client.cookies["sessionid"].value}


def routes() -> list[str]:
    """Every route but the admin's, as it is written, and the sockets."""
    return sorted({route for route in _walk(get_resolver()) if not route.startswith("admin/")})


def admin_routes() -> list[str]:
    return sorted({route for route in _walk(get_resolver()) if route.startswith("admin/")})


def _walk(resolver: Any, prefix: str = "") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield route
        else:
            yield from _walk(pattern, route)


def path_of(route: str) -> str:
    """A path that the route matches; what it names is not there."""
    for part, value in ROW_PARTS.items():
        route = route.replace(part, value)
    return f"/{route}"


async def column_of(caller: Caller) -> dict[str, str]:
    """What each row of the table has for this caller: the status, and where it is sent on to."""
    found = {f"SOCKET /{path}": "101" if await caller.connects(f"/{path}") else "403" for path in SOCKETS}
    for route in sorted([*routes(), PROBE], key=lambda route: "sign-out" in route):  # which ends its session
        for method in ("GET", "POST"):
            found[f"{method} /{route}"] = _shown(await caller.ask(method, path_of(route)))
    return found


def _shown(response: httpx2.Response) -> str:
    if "sign-in" in response.headers.get("Location", ""):
        return "sign-in"
    return str(response.status_code)


def read_table() -> dict[str, dict[str, str]]:
    """Rows by method and route: column to what is answered."""
    head, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    assert tuple(head.split()[2:]) == COLUMNS
    rows = [line.split() for line in lines]
    return {f"{row[0]} {row[1]}": dict(zip(COLUMNS, row[2:], strict=True)) for row in rows}


def write_table(columns: dict[str, dict[str, str]]) -> None:
    """Writes what was found; whoever does so reads the difference."""
    width = max(map(len, next(iter(columns.values())))) + 1
    lines = [f"{'method route':<{width}}" + " ".join(f"{name:<15}" for name in COLUMNS).rstrip()]
    for row in columns[COLUMNS[0]]:
        cells = " ".join(f"{columns[name][row]:<15}" for name in COLUMNS)
        lines.append(f"{row:<{width}}{cells}".rstrip())
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
