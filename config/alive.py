"""The probe of the process: answered by the event loop alone, before Django.

A view would need a thread's turn and a look at the database's connections, and a process whose threads are
busy would be started again for it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

ALIVE = "/healthz"


async def alive(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    """200 as long as this process answers; needs nothing else."""
    known = scope["method"] in ("GET", "HEAD")
    status = HTTPStatus.OK if known else HTTPStatus.METHOD_NOT_ALLOWED
    body = b'{"status": "ok"}' if known else b""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body if scope["method"] == "GET" else b""})
