"""A websocket whose client can neither flood this process nor let it pile up answers.

daphne queues every frame that comes in and buffers every frame that goes out, without bound. Here frames
and bytes are counted (too many: close code 1008), reading stops while the application has frames to obey or
the client has answers to read, and a send waits until there is room.
"""

from __future__ import annotations

import asyncio
from typing import Any

from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import reactor

from config.bounds import Bucket

POLICY_VIOLATION = 1008
FRAMES_A_S, FRAMES_AT_ONCE = 300.0, 900
"""A page acknowledges each frame that it shows, 125 a second at most."""
BYTES_A_S, BYTES_AT_ONCE = 256 * 1024.0, 2 << 20
WAITING_FRAMES = 32
"""So many may wait for the application before no more are read."""
DRAIN_S = 0.02
PATIENCE_S = 60.0
"""A client that reads nothing for so long is cut off."""
LAST_WORD_S = 1.0
"""What is left to a client that was told to go."""


class Socket(WebSocketProtocol):  # type: ignore[misc]  # Twisted calls methods that are not in snake case
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._frames = Bucket(FRAMES_A_S, FRAMES_AT_ONCE)
        self._bytes = Bucket(BYTES_A_S, BYTES_AT_ONCE)
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._dismissed = False
        self._draining = False

    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.unregisterProducer()  # the HTTP channel's, which has nothing to do with it any more
        self.transport.registerProducer(self, True)

    # What comes in ----------------------------------------------------------------------------------
    def dataReceived(self, data: bytes) -> None:
        if not self._dismissed:
            super().dataReceived(data)

    def onFrameBegin(self) -> None:
        """Every frame counts, pings and pieces of a message too."""
        super().onFrameBegin()
        if not self._frames.take(1) or not self._bytes.take(self.current_frame.length):
            self._dismiss()

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        if self._dismissed:
            return
        super().onMessage(payload, isBinary)
        if self.application_queue.qsize() >= WAITING_FRAMES and not self._draining:
            self._draining = True
            self._read_on()

    def _read_on(self) -> None:
        """Stops reading; goes on once the application has obeyed and the client has read its answers."""
        if self.state == self.STATE_CLOSED:
            return
        if self.application_queue.qsize() < WAITING_FRAMES // 2 and self._has_room.is_set():
            self._draining = False
            self.transport.resumeProducing()
            return
        self.transport.pauseProducing()
        reactor.callLater(DRAIN_S, self._read_on)

    def _dismiss(self) -> None:
        if self._dismissed:
            return
        self._dismissed = True
        self.sendCloseFrame(code=POLICY_VIOLATION, reasonUtf8=b"too many frames: slow down")
        self.data = b""  # what has arrived is not looked at
        reactor.callLater(LAST_WORD_S, self._abort)

    def _abort(self) -> None:
        if self.state != self.STATE_CLOSED:
            self.dropConnection(abort=True)

    # What goes out ----------------------------------------------------------------------------------
    def serverSend(self, content: Any, binary: bool = False) -> None:
        """What an application says to a client that is gone, or was told to go, is dropped."""
        if self.state in (self.STATE_CONNECTING, self.STATE_OPEN):
            super().serverSend(content, binary)

    def pauseProducing(self) -> None:
        """The client is behind in reading: nothing more of it is read either."""
        self._has_room.clear()
        if not self._draining and self.state == self.STATE_OPEN:
            self._draining = True
            self._read_on()

    def resumeProducing(self) -> None:
        self._has_room.set()

    def stopProducing(self) -> None:
        self._has_room.set()

    def connectionLost(self, reason: Any) -> None:
        self._has_room.set()
        super().connectionLost(reason)
        self.factory.server_class.http_factory.left(self.transport.getPeer())

    async def has_room(self) -> None:
        """Until the client has read most of what was sent, or is gone."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._has_room.wait()
        except TimeoutError:
            self._abort()
