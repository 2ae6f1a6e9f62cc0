"""An ASGI application that sends as fast as it may, and says how much of it has been taken."""

from __future__ import annotations

from typing import Any

CHUNK = b"x" * 65536
CHUNKS = 2000
PIECE = b"x" * 20_000_000
taken = 0
pieces = 0


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    global pieces, taken
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/flood":
        for _ in range(CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            taken += 1
        await send({"type": "http.response.body", "body": b""})
        return
    if scope["path"] == "/piece":
        await send({"type": "http.response.body", "body": PIECE})
        pieces += 1
        return
    said = str({"/taken": taken, "/pieces": pieces}.get(scope["path"], len(body))).encode()
    await send({"type": "http.response.body", "body": said})
