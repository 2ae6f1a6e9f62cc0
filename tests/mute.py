"""A Redis that hangs: it takes connections and never says a word, or its host vanishes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self


class _Hanging:
    """A listener that waits for connections while the `with` lasts."""

    def __init__(self, backlog: int | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.address = self._listener.getsockname()
        self.url = f"redis://127.0.0.1:{self.address[1]}/0"
        self.accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self.accepted):
            with contextlib.suppress(OSError):  # the other side may have left
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            self._take()

    def _take(self) -> None:
        raise NotImplementedError


class Mute(_Hanging):
    """A server that accepts, reads and never answers: no refusal, no reset."""

    def _take(self) -> None:
        while True:
            self.accepted.append(self._listener.accept()[0])


class Vanishing(_Hanging):
    """Says OK to each command of one connection until `vanish`; then nobody is heard or let in any more."""

    def __init__(self) -> None:
        super().__init__(backlog=0)
        self.url += "?protocol=2"  # an OK would be no answer to the greeting of a later one
        self._gone = threading.Event()

    def vanish(self) -> None:
        self._gone.set()
        for _ in range(4):  # more than wait in the backlog: whoever comes now is not even let in
            one = socket.socket()
            one.setblocking(False)
            self.accepted.append(one)
            with contextlib.suppress(BlockingIOError):
                one.connect(self.address)
        time.sleep(0.1)

    def _take(self) -> None:
        one = self._listener.accept()[0]
        self.accepted.append(one)
        while (said := one.recv(65536)) and not self._gone.is_set():
            one.sendall(b"+OK\r\n" * said.count(b"*"))
