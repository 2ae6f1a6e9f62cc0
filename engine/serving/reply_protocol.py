"""Redis' replies to an event loop as they arrive: from the socket into hiredis, with no stream between.

redis-py reads through asyncio's streams: a coroutine for each layer, and a task's turn before anybody looks
at the bytes. In a process that has just woken up that is most of what a command costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as Silence

Read = Callable[[Any], Any]
"""Makes of a reply what its caller wants."""
_NOT_YET = object()


class ReplyProtocol(asyncio.Protocol):
    """Takes the place of the protocol of a connection that redis-py has made, and hands all to that one but
    the replies that are awaited here: redis-py still connects, checks, writes and closes.
    """

    def __init__(self, connection: Any, redis_py: asyncio.Protocol) -> None:
        self._redis_py = redis_py
        self._parser = hiredis.Reader(
            replyError=connection._parser.parse_error,
            encoding=connection.encoder.encoding,
            notEnoughData=_NOT_YET,
        )
        self._awaited: asyncio.Future[Any] | None = None
        self._read: Read | None = None

    @classmethod
    def of(cls, connection: Any) -> Self:
        """The one of a connection that is open."""
        transport = connection._writer.transport
        found = transport.get_protocol()
        if not isinstance(found, cls):
            found = cls(connection, found)
            transport.set_protocol(found)
        return found

    def expect(self, read: Read | None) -> asyncio.Future[Any]:
        """The next reply, as `read` makes it the moment that it arrives, before any task has its turn.

        It raises what Redis says is wrong, RedisConnectionError if the connection ends first, InvalidResponse
        for what is no reply, and what `read` raises. Nobody may expect another one before it is there, or the
        connection closed.
        """
        self._awaited = asyncio.get_running_loop().create_future()
        self._read = read
        return self._awaited

    def data_received(self, data: bytes) -> None:
        if self._awaited is None:
            self._redis_py.data_received(data)
            return
        try:
            self._parser.feed(data)
            reply = self._parser.gets()
            while isinstance(reply, hiredis.PushNotification):  # nobody here has asked for any
                reply = self._parser.gets()
        except (hiredis.HiredisError, UnicodeDecodeError) as error:
            self._settle(InvalidResponse(f"Redis' reply cannot be read: {error}"))
            return
        if reply is not _NOT_YET:
            self._settle(reply)

    def eof_received(self) -> bool | None:
        self._settle(RedisConnectionError("Redis closed the connection"))
        return self._redis_py.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._settle(RedisConnectionError(f"the connection to Redis is lost: {error or 'it was closed'}"))
        self._redis_py.connection_lost(error)

    def pause_writing(self) -> None:
        self._redis_py.pause_writing()

    def resume_writing(self) -> None:
        self._redis_py.resume_writing()

    def _settle(self, reply: Any) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is None or awaited.done():
            return
        try:
            found = self._read(reply) if self._read and not isinstance(reply, Exception) else reply
        except Exception as error:
            found = error
        if isinstance(found, Exception):
            awaited.set_exception(found)
        else:
            awaited.set_result(found)


async def arrival(reply: asyncio.Future[Any], seconds: float) -> Any:
    """The reply. Raises redis-py's TimeoutError if there is none within `seconds`."""
    timer = asyncio.get_running_loop().call_later(seconds, _give_up, reply)
    try:
        return await reply
    finally:
        timer.cancel()


def _give_up(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(Silence("Redis did not answer in time"))
