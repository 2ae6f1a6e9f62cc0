"""A TCP connection that speaks HTTP, with a deadline for each part of a request.

Twisted's own timeout starts again at every byte: a client that sends one now and then keeps its connection
for ever. Here the head and the body each have a time in which all of it must be there. What is answered is
written at once, its head together with what follows it.
"""

from __future__ import annotations

from typing import Any

from twisted.web import http

from config.sending import send_now

HEAD_S = 10.0
"""From the connection, or from the first byte of a later request, to the end of its headers."""
BODY_S = 10.0
BODY_BYTES_A_S = 20_000
"""A body has BODY_S and the time that it takes at this speed."""


class Channel(http.HTTPChannel):  # type: ignore[misc]  # Twisted calls methods that are not in snake case
    _deadline: Any = None
    _head = b""
    """Of an answer of which nothing else is there yet."""
    _in_head = False
    """Whether a request has begun whose headers are not all there."""

    def connectionMade(self) -> None:
        super().connectionMade()
        self._expect(HEAD_S)

    def dataReceived(self, data: bytes) -> None:
        begins = self._deadline is None and not self._handlingRequest
        self._in_head |= begins
        super().dataReceived(data)
        if begins and self._in_head:  # most heads are there at once, and need no deadline
            self._expect(HEAD_S)

    def allHeadersReceived(self) -> None:
        self._in_head = False
        super().allHeadersReceived()
        # A body in pieces does not say how long it is: the largest that is taken sets its time.
        length = self.factory.body_bytes if self.length is None else min(self.length, self.factory.body_bytes)
        self._expect(BODY_S + length / BODY_BYTES_A_S)

    def allContentReceived(self) -> None:
        self._expect(None)
        super().allContentReceived()

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Any) -> None:
        named = [name + b": " + value for name, values in headers.getAllRawHeaders() for value in values]
        self._head = b"\r\n".join([b" ".join((version, code, reason)), *named, b"", b""])

    def write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        send_now(self.transport, head + data)

    def writeSequence(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def send_head(self) -> None:
        """Of an answer without content, or whose content is yet to come."""
        if self._head:
            self.write(b"")

    def requestDone(self, request: Any) -> None:
        self.send_head()
        super().requestDone(request)

    def connectionLost(self, reason: Any) -> None:
        self._expect(None)
        super().connectionLost(reason)
        self.factory.left(self.transport.getPeer())

    def _expect(self, seconds: float | None) -> None:
        """Cuts the connection off unless this is called again within `seconds`."""
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:
            self._deadline = self.callLater(seconds, self._cut_off)

    def _cut_off(self) -> None:
        self._deadline = None
        self.forceAbortClient()
