"""A websocket client without manners: it sends what it is told to, reads when it is told to."""

from __future__ import annotations

import socket
import struct

from tests.waiting import PATIENCE_S


class RawSocket:
    """Connects from `source`, an address of this machine (any of 127.0.0.0/8)."""

    def __init__(self, port: int, path: str, *, source: str = "127.0.0.1", headers: str = "") -> None:
        self.connection = socket.create_connection(
            ("127.0.0.1", port), timeout=PATIENCE_S, source_address=(source, 0)
        )
        host = f"localhost:{port}"
        self.connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n".encode()
        )
        self._unread = b""
        while b"\r\n\r\n" not in self._unread:
            part = self.connection.recv(4096)
            if not part:
                break
            self._unread += part
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        self.status = int(head.split()[1]) if head else 0

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, payload: bytes, times: int = 1) -> None:
        self.connection.sendall(frame(payload) * times)

    def close_code(self, timeout: float = PATIENCE_S) -> int:
        """The code of the server's close frame, 0 if the connection ends without one. Skips other frames."""
        self.connection.settimeout(timeout)
        while True:
            opcode, payload = self._next()
            if opcode in (-1, 8):
                return struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else 0

    def receive(self, timeout: float = PATIENCE_S) -> bytes:
        """The payload of the next frame; b"" at the end of the connection."""
        self.connection.settimeout(timeout)
        return self._next()[1]

    def _next(self) -> tuple[int, bytes]:
        try:
            head = self._read(2)
            length = head[1] & 127
            if length > 125:
                size = 2 if length == 126 else 8
                length = int.from_bytes(self._read(size), "big")
            return head[0] & 15, self._read(length)
        except (ConnectionError, EOFError):
            return -1, b""

    def _read(self, count: int) -> bytes:
        while len(self._unread) < count:
            part = self.connection.recv(1 << 16)
            if not part:
                raise EOFError
            self._unread += part
        found, self._unread = self._unread[:count], self._unread[count:]
        return found


def frame(payload: bytes, *, opcode: int = 2, final: bool = True) -> bytes:
    """One masked frame (with the mask 0, which changes nothing)."""
    size = len(payload)
    if size < 126:
        length = bytes([size | 128])
    else:
        length = b"\xfe" + struct.pack("!H", size) if size < 1 << 16 else b"\xff" + struct.pack("!Q", size)
    return bytes([opcode | (128 if final else 0)]) + length + bytes(4) + payload
