"""An ASGI application that sends as fast as it may, and says how much of it has been taken.

Its websocket answers every frame: under /echo with the same, under /loud with a large one, under /slow after
a while. /farewell/S never answers, and takes S seconds to end when the server stops.
"""

from __future__ import annotations

import asyncio
from typing import Any

CHUNK = b"x" * 65536
CHUNKS = 2000
PIECE = b"x" * 20_000_000
taken = 0
pieces = 0
floods = 0
frames = 0
begun = 0


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    global begun, floods, pieces, taken
    if scope["type"] == "lifespan":
        begun += (await receive())["type"] == "lifespan.startup"
    if scope["type"] == "websocket":
        await answer_frames(scope["path"], receive, send)
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"].startswith("/farewell/"):
        await say_farewell(float(scope["path"].removeprefix("/farewell/")))
    if scope["path"] == "/flood":
        for _ in range(CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            taken += 1
        await send({"type": "http.response.body", "body": b""})
        floods += 1
        return
    if scope["path"] == "/piece":
        await send({"type": "http.response.body", "body": PIECE})
        pieces += 1
        return
    known = {
        "/taken": taken,
        "/pieces": pieces,
        "/floods": floods,
        "/frames": frames,
        "/begun": begun,
        "/root": scope["root_path"],
    }
    said = str(known.get(scope["path"], len(body))).encode()
    await send({"type": "http.response.body", "body": said})


async def say_farewell(seconds: float) -> None:
    global taken
    taken += 1
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(seconds)
        print("farewell", flush=True)


async def answer_frames(path: str, receive: Any, send: Any) -> None:
    global frames
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        frames += 1
        if path == "/slow":
            await asyncio.sleep(0.01)
        await send({"type": "websocket.send", "bytes": CHUNK if path == "/loud" else message.get("bytes")})
