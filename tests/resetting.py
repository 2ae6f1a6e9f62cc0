"""A way to Redis that is reset on demand, as by a firewall or a host that has started again."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Resetting:
    """Listens at `url` while the `with` lasts, and passes on what is said to and by Redis."""

    def __init__(self, redis_url: str) -> None:
        parts = urlsplit(redis_url)
        self._redis = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = parts._replace(netloc=f"127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self._accepted: list[socket.socket] = []
        self._ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def reset(self) -> None:
        """Every connection so far ends with an RST."""
        for one in self._accepted:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.shutdown(socket.SHUT_RD)  # ends the recv that keeps it open
            one.close()
        self._accepted.clear()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, far = self._listener.accept()[0], socket.create_connection(self._redis)
                self._accepted.append(near)
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while said := source.recv(65536):
            sink.sendall(said)
