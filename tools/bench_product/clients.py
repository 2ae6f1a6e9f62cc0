"""What drives the product: a page's websocket and an HTTP client, with a clock beside each frame."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable
from typing import Any, cast

from autobahn.asyncio.websocket import WebSocketClientFactory, WebSocketClientProtocol

from tools.bench_product.answer import Answer, Frame
from tools.bench_product.product import ProductError

ACK_S = 0.1
OPEN_S = 10.0
ANSWER_S = 120.0


class _Socket(WebSocketClientProtocol):
    frames: asyncio.Queue[tuple[Frame, float]]
    opened: asyncio.Event
    arrived = 0.0
    """When the last bytes came: what this client then makes of them is no part of an answer."""

    def onOpen(self) -> None:
        self.opened.set()

    def data_received(self, data: bytes) -> None:
        """As autobahn's, which lets the event loop turn first: it is not the client that is timed."""
        self.arrived = time.perf_counter()
        self._dataReceived(data)

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:  # noqa: ARG002
        """As autobahn's, without the words for its log."""
        self.transport.write(data)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: ARG002
        self.frames.put_nowait((json.loads(payload), self.arrived))

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:  # noqa: ARG002
        gone = {"type": "error", "message": f"the socket closed with {code}: {reason}"}
        self.frames.put_nowait((gone, time.perf_counter()))

    def say(self, frame: Frame) -> None:
        self.sendMessage(json.dumps(frame).encode())  # type: ignore[no-untyped-call]


class Page:
    """An open page of one browser session; one generation at a time."""

    def __init__(self, socket: _Socket) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, port: int) -> Page:
        cookie = await asyncio.to_thread(_session_cookie, port)
        opened, frames = asyncio.Event(), asyncio.Queue[tuple[Frame, float]]()
        sockets: list[_Socket] = []

        def make() -> _Socket:
            socket = _Socket()
            socket.opened, socket.frames = opened, frames
            sockets.append(socket)
            return socket

        loop = asyncio.get_running_loop()
        factory = WebSocketClientFactory(  # type: ignore[no-untyped-call]
            f"ws://127.0.0.1:{port}/ws/playground/",
            origin=f"http://127.0.0.1:{port}",
            headers={"Cookie": cookie},
            loop=loop,
        )
        factory.protocol = cast("type[WebSocketClientProtocol]", make)
        await loop.create_connection(factory, "127.0.0.1", port)
        async with asyncio.timeout(OPEN_S):
            await opened.wait()
        return cls(sockets[0])

    async def ask(
        self, prompt: str, on_tokens: Callable[[Answer], None] = lambda _answer: None, **more: Any
    ) -> Answer:
        """One generation to its end; `on_tokens` is called after each frame of tokens."""
        answer, acked_at = Answer(time.perf_counter()), 0.0
        self._socket.say({"type": "start", "prompt": prompt, **more})
        async with asyncio.timeout(ANSWER_S):
            while True:
                frame, now = await self._socket.frames.get()
                if answer.add(frame, now):
                    return answer
                if frame["type"] == "tokens":
                    on_tokens(answer)
                    if now - acked_at >= ACK_S:
                        acked_at = now
                        self._socket.say({"type": "ack", "seq": answer.tokens})

    def close(self) -> None:
        self._socket.sendClose(1000)


def _session_cookie(port: int) -> str:
    """What a browser has after it opened the page. Raises ProductError.

    Without a session there is no owner, and nothing is kept between prompts.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=OPEN_S)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
        given = answer.headers.get_all("Set-Cookie") or []
    finally:
        connection.close()
    if answer.status != 200 or not given:
        raise ProductError(
            f"the page answered {answer.status} and opened no session: build the front end with `make setup`"
        )
    return "; ".join(cookie.partition(";")[0] for cookie in given)


class Http:
    """A client of /v1 that keeps its connection, as OpenAI's own does."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)

    def complete(self, **body: Any) -> tuple[dict[str, Any], float]:
        """The answer to /v1/completions, and the seconds that it took. Raises ProductError."""
        data = json.dumps(body).encode()
        asked = time.perf_counter()
        self._connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        took = time.perf_counter() - asked
        if answer.status != 200:
            raise ProductError(
                f"/v1/completions answered {answer.status}: {text[:300].decode(errors='replace')}"
            )
        return json.loads(text), took

    def close(self) -> None:
        self._connection.close()
