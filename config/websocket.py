"""A websocket whose client can neither flood this process nor let it pile up answers.

daphne queues every frame that comes in and buffers every frame that goes out, without bound. Here frames
and bytes are counted (too many: close code 1008, and no other websocket for that address for a while), a few
frames of a socket are taken in each turn of the event loop, reading stops while the application has frames to
obey or the client has answers to read, and a send waits until there is room.
"""

from __future__ import annotations

from typing import Any

from daphne.ws_protocol import WebSocketProtocol
from django.conf import settings
from twisted.internet import reactor

from config.addresses import client_address
from config.bounds import POLICY_VIOLATION, Bucket
from config.send_room import SendRoom
from config.sending import send_now

FRAMES_A_S, FRAMES_AT_ONCE = 300.0, 900
"""A page acknowledges each frame that it shows, 125 a second at most."""
BYTES_A_S, BYTES_AT_ONCE = 256 * 1024.0, 768 * 1024
MESSAGE_BYTES = 512 * 1024
"""One longer message ends the socket. The application says itself what is wrong with one half as long."""
TOO_LARGE = 1009
"""Close code: a message is too large."""
CONTINUATION, CONTROL = 0, 8
"""Opcodes: of a further piece of a message, and the least of pings and the like."""
FRAMES_A_TURN = 4
"""So many of one socket are taken before the event loop turns to everybody else."""
WAITING_FRAMES = 32
"""So many may wait for the application before no more are read."""
DRAIN_S = 0.02
LAST_WORD_S = 0.5
"""What is left to a client that was told to go."""


class Socket(WebSocketProtocol):  # type: ignore[misc]  # Twisted calls methods that are not in snake case
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._frames = Bucket(FRAMES_A_S, FRAMES_AT_ONCE)
        self._bytes = Bucket(BYTES_A_S, BYTES_AT_ONCE)
        self._send_room = SendRoom()
        self._message_bytes = 0
        """Of the message that is coming in, so far."""
        self._dismissed = False
        self._waiting = False
        self._left_of_turn = FRAMES_A_TURN
        self._more = False
        """Whether the application says something else at once: both are written together."""
        self._held = b""

    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.unregisterProducer()  # the HTTP channel's, which has nothing to do with it any more
        self.transport.registerProducer(self, True)

    # What comes in ----------------------------------------------------------------------------------
    def dataReceived(self, data: bytes) -> None:
        """As autobahn's, without the words for its log, which take as long as the frame itself."""
        if not self._dismissed:
            self._dataReceived(data)

    def consumeData(self) -> None:
        self._left_of_turn = FRAMES_A_TURN
        super().consumeData()

    def processData(self) -> bool:
        """The next part of a frame. False if there is none, or if the frame has to wait."""
        if self.current_frame is None and not self._dismissed:
            if self._is_behind():
                self._wait(DRAIN_S)
                return False
            if not self._left_of_turn:
                self._wait(0.0)
                return False
        return bool(super().processData())

    def onFrameBegin(self) -> None:
        """Every frame counts, pings and pieces of a message too."""
        super().onFrameBegin()
        self._left_of_turn -= 1
        frame = self.current_frame
        if frame.opcode < CONTROL:
            self._message_bytes = frame.length + (self._message_bytes if frame.opcode == CONTINUATION else 0)
        if self._message_bytes > MESSAGE_BYTES:
            self._dismiss(TOO_LARGE, b"the message is too large: send less")
        elif not self._frames.take(1) or not self._bytes.take(frame.length):
            self._dismiss()

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        if not self._dismissed:
            super().onMessage(payload, isBinary)

    def _is_behind(self) -> bool:
        """Whether the application has frames to obey, or the client answers to read."""
        return self.application_queue.qsize() >= WAITING_FRAMES or not self._send_room.is_there

    def _wait(self, seconds: float) -> None:
        """Reads no more for so long; what has arrived lies where it is."""
        if not self._waiting:
            self._waiting = True
            self.transport.pauseProducing()
            reactor.callLater(seconds, self._read_on)

    def _read_on(self) -> None:
        self._waiting = False
        if self.state == self.STATE_CLOSED:
            return
        if self._is_behind() and not self._dismissed:
            self._wait(DRAIN_S)
            return
        self.transport.resumeProducing()
        if self.data:
            self.consumeData()

    def _dismiss(self, code: int = POLICY_VIOLATION, reason: bytes = b"too many frames: slow down") -> None:
        """Tells the client to go. Whoever broke no rule may come back at once."""
        if self._dismissed:
            return
        self._dismissed = True
        if code == POLICY_VIOLATION:
            self._exclude()
        self.sendCloseFrame(code=code, reasonUtf8=reason)
        self.data = b""  # what has arrived is not looked at
        reactor.callLater(LAST_WORD_S, self._abort)

    def _abort(self) -> None:
        if self.state != self.STATE_CLOSED:
            self.dropConnection(abort=True)

    def _exclude(self) -> None:
        """No other websocket for this client now: a flood costs most where it begins anew."""
        peer = str(getattr(self.transport.getPeer(), "host", ""))
        forwarded = self.http_headers.get("x-forwarded-for", "")
        excluded = self.factory.server_class.http_factory.excluded
        excluded.add(client_address(peer, forwarded, settings.TRUSTED_PROXIES))

    # What goes out ----------------------------------------------------------------------------------
    def handle_reply(self, message: dict[str, Any]) -> None:
        self._more = bool(message.get("more"))
        try:
            super().handle_reply(message)
        finally:
            self._more = False  # pongs and the like, sent before the next message, do not wait for it

    def serverSend(self, content: Any, binary: bool = False) -> None:
        """What an application says to a client that is gone, or was told to go, is dropped."""
        if self.state in (self.STATE_CONNECTING, self.STATE_OPEN):
            super().serverSend(content, binary)

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:
        """As autobahn's, at once and without the words for its log."""
        data, self._held = self._held + data, b""
        if self._more:
            self._held = data
        elif sync or chopsize or self.send_queue:
            super().sendData(data, sync, chopsize)
        else:
            send_now(self.transport, data)

    def serverClose(self, code: int | None = None) -> None:
        """The application has had enough of it; where it says that a rule was broken, as `_dismiss`."""
        if code == POLICY_VIOLATION:
            self._dismiss()
        else:
            super().serverClose(code)

    def pauseProducing(self) -> None:
        """The client is behind in reading: nothing more of it is read either."""
        self._send_room.take()
        if self.state == self.STATE_OPEN:
            self._wait(DRAIN_S)

    def resumeProducing(self) -> None:
        self._send_room.give()

    def stopProducing(self) -> None:
        self._send_room.give()

    def connectionLost(self, reason: Any) -> None:
        self._send_room.give()
        super().connectionLost(reason)
        self.factory.server_class.http_factory.left(self.transport.getPeer())

    async def has_room(self) -> None:
        """Until the client has read most of what was sent, or is gone."""
        await self._send_room.wait(self._abort)
