"""Websocket clients that behave like the page. Apart, since autobahn's asyncio side and daphne's Twisted
side cannot live in one process."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from autobahn.asyncio.websocket import WebSocketClientFactory, WebSocketClientProtocol

from tools.web_path_figures import PathError, Stream

ACK_S = 0.1


class Page(WebSocketClientProtocol):
    """Starts one generation, acknowledges like the page, and writes down what comes."""

    stream: Stream
    request: dict[str, Any]

    def onOpen(self) -> None:
        self._say(self.request)
        self._acks = asyncio.get_running_loop().create_task(self._acknowledge())

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: ARG002
        now = time.monotonic_ns()
        self.stream.add(json.loads(payload), now)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:  # noqa: ARG002
        if not self.stream.ended.is_set():
            self.stream.fail(f"the socket closed with {code}: {reason}")
        self.stream.closed.set()

    async def _acknowledge(self) -> None:
        while not self.stream.ended.is_set():
            await asyncio.sleep(ACK_S)
            if self.stream.tokens > self.stream.acked:
                self.stream.acked = self.stream.tokens
                self._say({"type": "ack", "seq": self.stream.acked})
        self.sendClose(1000)

    def _say(self, frame: dict[str, Any]) -> None:
        self.sendMessage(json.dumps(frame).encode())  # type: ignore[no-untyped-call]


async def watch(port: int, count: int, tokens: int) -> list[Stream]:
    """`count` pages at once, each to the end of a generation of `tokens`. Raises PathError."""
    streams = [Stream() for _ in range(count)]
    loop = asyncio.get_running_loop()
    for stream in streams:
        factory = WebSocketClientFactory(  # type: ignore[no-untyped-call]
            f"ws://127.0.0.1:{port}/ws/playground/", origin=f"http://127.0.0.1:{port}", loop=loop
        )
        # Whoever has 40 ends to write down at once may take a while to say goodbye.
        factory.setProtocolOptions(closeHandshakeTimeout=20)  # type: ignore[no-untyped-call]
        factory.protocol = _page_of(stream, {"type": "start", "prompt": "to", "max_tokens": tokens})
        await loop.create_connection(factory, "127.0.0.1", port)
    await asyncio.gather(*(stream.ended.wait() for stream in streams))
    await asyncio.gather(*(stream.closed.wait() for stream in streams))
    for stream in streams:
        if stream.error or stream.tokens != tokens:
            raise PathError(stream.error or f"{stream.tokens} of {tokens} tokens arrived")
    return streams


def _page_of(stream: Stream, request: dict[str, Any]) -> Any:
    def make() -> Page:
        page = Page()
        page.stream, page.request = stream, request
        return page

    return make
