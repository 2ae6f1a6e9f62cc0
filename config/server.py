"""daphne with the bounds that it leaves to a proxy: `python -m config.server`, with daphne's own arguments.

A request's body is refused once it is too large, before the rest of it is taken in. An answer that its
client does not read makes the application wait, instead of piling up in this process; see django/daphne#170.
No address has more than its part of the connections or asks for more than its part of the work (`bounds`),
no request takes for ever to arrive (`channel`), and no websocket floods or is flooded (`websocket`).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from typing import Any

import daphne.cli
import daphne.server  # must be the first to import Twisted's reactor
from daphne.cli import CommandLineInterface
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory
from django.conf import settings
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from config.access_log import AccessLog
from config.addresses import client_address, is_trusted
from config.alive import ALIVE
from config.bounds import Exclusions, Pace, connection_census
from config.channel import Channel
from config.send_room import SendRoom
from config.websocket import Socket
from engine.garbage import collect_rarely

BODY_BYTES = 1 << 20
"""The most that any path takes; /v1 refuses more than a quarter of it by itself."""
DISCARDED_BYTES = 8 << 20
"""So much of a refused body is read and dropped, for the client to get to the answer; then it is cut off."""
WORK_A_S, WORK_AT_ONCE = 20.0, 200.0
"""Of one address, in pages."""
FORM, HANDSHAKE, FILE = 10.0, 0.5, 0.1
"""The work of a form (a password, an upload), of opening a websocket, and of a file, there or not."""
TURN_S = 10.0
"""What would wait longer for its turn is refused then."""
EXCLUDED_S, EXCLUDED_AT_MOST_S = 10.0, 300.0
"""An address whose websocket was a flood opens no other for so long, twice as long the next time."""


class Request(WebRequest):  # type: ignore[misc]  # daphne has no types
    """One HTTP request. Twisted calls the methods that are not in snake case."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._received = 0
        self._refused = False
        self._send_room = SendRoom()
        super().__init__(*args, **kwargs, parsePOSTFormSubmission=False)  # Django reads forms itself

    # The body, on its way in ------------------------------------------------------------------------
    def gotLength(self, length: int | None) -> None:
        super().gotLength(length)
        if length is not None and length > BODY_BYTES:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > BODY_BYTES and not self._refused:
            self._refuse()
        if not self._refused:
            super().handleContentChunk(data)
        elif self._received > DISCARDED_BYTES:
            self.channel.forceAbortClient()

    def process(self) -> Any:
        """All of the request is there."""
        if self._refused:
            self.channel.loseConnection()
            return None
        # daphne would take the application's root from it, and so every path from whoever asks.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        asked = self._is_websocket()
        work = HANDSHAKE if asked else work_of(self.method, self.path)
        if not work:
            return super().process()
        factory, address = self.channel.factory, self._address()
        if asked and (left_s := factory.excluded.left_s(address)):
            return self._turn_away(left_s)
        wait_s = factory.pace.wait_s(address, work, TURN_S)
        if not wait_s:
            return super().process()
        # Whoever asks again at once, refused or not, has waited: asking costs this process a connection.
        reactor.callLater(min(wait_s, TURN_S), self._take_turn, wait_s)
        return None

    def _take_turn(self, wait_s: float) -> None:
        if self.channel is None or self._disconnected:
            return
        if wait_s > TURN_S:
            self._turn_away(wait_s - TURN_S)
        else:
            super().process()

    def _turn_away(self, seconds: float) -> None:
        self.requestHeaders.removeHeader(b"upgrade")
        self.setHeader(b"Retry-After", b"%d" % math.ceil(seconds))
        self.setHeader(b"Connection", b"close")
        self.basic_error(429, b"Too Many Requests", f"Slow down; try again in {math.ceil(seconds)} s.")

    def _is_websocket(self) -> bool:
        """As daphne has it: what is a websocket to one only would pass what holds for the other."""
        headers = self.requestHeaders.getRawHeaders(b"upgrade") or (b"",)
        return bool(headers[0].lower() == b"websocket")

    def _address(self) -> str:
        """The address of whoever asks, to count by."""
        forwarded = b",".join(self.requestHeaders.getRawHeaders(b"x-forwarded-for") or ())
        peer = str(getattr(self.client, "host", ""))
        return client_address(peer, forwarded.decode("latin-1"), settings.TRUSTED_PROXIES)

    def _refuse(self) -> None:
        """Answers and half-closes: a socket closed on unread bytes would take the answer with it."""
        self._refused = True
        message = f"The body has more than {BODY_BYTES:,} bytes; send less"
        error = {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
        body = json.dumps({"error": error}).encode()
        head = [
            b"HTTP/1.1 413 Content Too Large",
            b"Content-Type: application/json",
            b"Content-Length: %d" % len(body),
            b"Connection: close",
        ]
        transport = self.channel.transport
        transport.write(b"\r\n".join([*head, b"", body]))
        transport.loseWriteConnection()

    # The answer, on its way out ---------------------------------------------------------------------
    def handle_reply(self, message: dict[str, Any]) -> None:
        starts = message.get("type") == "http.response.start"
        if starts and self.channel is not None and not self.finished and self.producer is None:
            self.registerProducer(self, True)
        if self.method == b"HEAD" and not starts:
            message = {**message, "body": b""}  # Twisted leaves out what it is given first, and no more
        super().handle_reply(message)
        if not starts and not self.finished and self.channel is not None:
            self.channel.send_head()

    def pauseProducing(self) -> None:
        self._send_room.take()

    def resumeProducing(self) -> None:
        self._send_room.give()

    def stopProducing(self) -> None:
        self._send_room.give()

    def finish(self) -> None:
        self._release()
        self._send_room.give()
        super().finish()

    def connectionLost(self, reason: Any) -> None:
        self._send_room.give()
        super().connectionLost(reason)

    def _release(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()

    async def has_room(self) -> None:
        """Until the client has read most of what was sent, or is gone."""
        await self._send_room.wait(self._cut_off)

    def _cut_off(self) -> None:
        if not self.finished and self.channel is not None:  # else Twisted has taken the channel away
            self.channel.transport.abortConnection()


def work_of(method: bytes, path: bytes) -> float:
    """What answering a request takes of this process, in pages. /v1 is cheap, and has limits of its own."""
    if path.startswith(b"/v1/") or path == ALIVE.encode():
        return 0.0
    if path == b"/tokenize":  # it passes the pages' middleware, but is no form
        return 1.0
    if method != b"POST" and path.startswith(settings.STATIC_URL.encode()):
        return FILE
    return FORM if method == b"POST" else 1.0


class Factory(HTTPFactory):  # type: ignore[misc]
    protocol = Channel
    body_bytes = BODY_BYTES

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._census = connection_census()
        self.excluded = Exclusions(EXCLUDED_S, EXCLUDED_AT_MOST_S)
        self.pace = Pace(WORK_A_S, WORK_AT_ONCE)

    def buildProtocol(self, addr: Any) -> Any:
        """None, which closes the connection, for one too many."""
        if not self._census.enter(_counting_address(addr)):
            return None
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = Request
        return protocol

    def log(self, request: Any) -> None:
        """Nothing: Twisted's own log of requests has no reader beside AccessLog."""

    def left(self, addr: Any) -> None:
        """A connection from `addr` is gone."""
        self._census.leave(_counting_address(addr))


def _counting_address(addr: Any) -> str:
    """The address to count a connection by; "" for a Unix socket, and for a proxy, which speaks for many."""
    host = getattr(addr, "host", "")
    return "" if is_trusted(host, settings.TRUSTED_PROXIES) else client_address(host, "", ())


class Sockets(WebSocketFactory):  # type: ignore[misc]
    protocol = Socket


class Server(daphne.server.Server):  # type: ignore[misc]
    connections: dict[Any, dict[str, Any]]

    def run(self) -> None:
        self.ready_callable = lambda: asyncio.get_event_loop().create_task(self._begin_application())
        collect_rarely()
        super().run()

    async def _begin_application(self) -> None:
        """Tells the application that the process begins (ASGI's lifespan), which daphne keeps to itself.

        The end is not told: whatever answers is ended one by one.
        """

        async def receive() -> dict[str, Any]:
            return {"type": "lifespan.startup"}

        async def send(_message: dict[str, Any]) -> None:
            pass

        await self.application({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    def kill_all_applications(self) -> Any:
        """Ends what answers, as the process stops, and waits for all of it; daphne waits for the first only.

        A request that has not arrived whole is nothing yet.
        """
        return Deferred.fromFuture(asyncio.ensure_future(self._end_applications()))

    async def _end_applications(self) -> None:
        found = [each.get("application_instance") for each in self.connections.values()]
        running = {application for application in found if application is not None}
        for application in running:
            application.cancel()
        if running:
            await asyncio.wait(running, timeout=self.application_close_timeout)

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        if isinstance(protocol, Socket):
            await super().handle_reply(protocol, message)
            await protocol.has_room()
            return
        ours = isinstance(protocol, Request)
        if ours and _ends_with_content(message):
            # Whoever has finished is not told of room any more: the end waits until the content is read.
            await super().handle_reply(protocol, {**message, "more_body": True})
            await protocol.has_room()
            message = {"type": "http.response.body"}
        await super().handle_reply(protocol, message)
        if ours and not protocol.finished:
            await protocol.has_room()


def _ends_with_content(message: dict[str, Any]) -> bool:
    is_body = message["type"] == "http.response.body"
    return is_body and bool(message.get("body")) and not message.get("more_body")


class Command(CommandLineInterface):  # type: ignore[misc]
    description = "The project's HTTP and websocket server"
    server_class = Server


SWITCH_S = 0.0005
"""How long one thread may keep the others from the interpreter: frames must not wait for the database."""


def main() -> None:
    sys.setswitchinterval(SWITCH_S)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    daphne.server.HTTPFactory = Factory  # Server.run names them, and offers no other way in
    daphne.server.WebSocketFactory = Sockets
    daphne.cli.AccessLogGenerator = AccessLog
    Command().run(sys.argv[1:])


if __name__ == "__main__":
    main()
