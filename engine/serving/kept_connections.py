"""Connections that stay with whoever uses them, for the commands that somebody waits for.

For each command redis-py takes a connection out of a pool, asks the system whether a reply is left over in
it, and counts for metrics that this project does not read. In a process that has just woken up that takes
twice as long as the command itself. How long a reply may take and what is tried again is as for any other
command (connection.py); scripts may always run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
import redis
import redis.asyncio
from redis.commands.core import AsyncScript, Script
from redis.exceptions import NoScriptError, ResponseError

from engine.serving.reply_protocol import Read, ReplyProtocol, arrival

Command = Sequence[Any]
"""Its name and arguments."""
MOST_KEPT = 8
"""Connections that an event loop keeps; those of a busier moment go back to the client's pool."""


class KeptConnection:
    """For one thread. `client` closes it."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._connection: Any = None

    def run(self, script: Script, keys: Sequence[str] = (), args: Sequence[Any] = ()) -> Any:
        """As calling `script`."""
        command = evaluation(script, keys, args)
        try:
            [reply] = self.ask(command)
        except NoScriptError:  # Redis was started anew
            _, reply = self.ask(_loading(script), command)
        return reply

    def ask(self, *commands: Command) -> list[Any]:
        """The replies as Redis gives them, of one round trip. Raises RedisError, of the first that failed."""
        if self._connection is None:
            pool: Any = self._client.connection_pool
            self._connection = pool.get_connection()
        connection = self._connection
        if not connection.is_connected:
            connection.connect()  # which tries again by itself: within the retry below, each try would
        replies: list[Any] = connection.retry.call_with_retry(
            lambda: _exchange(connection, commands), lambda _error: connection.disconnect()
        )
        return replies


class KeptConnections:
    """For one event loop. `client`, which connect_async made, closes them.

    At most half of the connections that the client's pool may have are in use here at once: a further caller
    waits for one, and plain commands always find one.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._pool: Any = client.connection_pool
        most = max(1, self._pool.max_connections // 2)
        self._free = asyncio.Semaphore(most)
        self._most_kept = min(MOST_KEPT, most)
        self._idle: list[Any] = []

    async def run(self, script: AsyncScript, keys: Sequence[str] = (), args: Sequence[Any] = ()) -> Any:
        """As calling `script`."""
        command = evaluation(script, keys, args)
        try:
            return await self.ask(command)
        except NoScriptError:
            await self.ask(_loading(script))
        return await self.ask(command)

    async def ask(self, command: Command, read: Read | None = None) -> Any:
        """The reply to one command as Redis gives it, or as `read` makes it the moment that it arrives.

        Raises RedisError, and what `read` raises.
        """
        packed = hiredis.pack_command(tuple(command))
        async with self._free:
            connection = self._idle.pop() if self._idle else await self._pool.get_connection()
            try:
                return await _ask_async(connection, packed, read)
            finally:
                if len(self._idle) < self._most_kept:
                    self._idle.append(connection)
                else:
                    await self._pool.release(connection)


def evaluation(script: Script | AsyncScript, keys: Sequence[str], args: Sequence[Any]) -> Command:
    """The command that runs `script` if Redis knows it."""
    return ("EVALSHA", script.sha, len(keys), *keys, *args)


def _loading(script: Script | AsyncScript) -> Command:
    return ("SCRIPT", "LOAD", script.script)


def _exchange(connection: Any, commands: Sequence[Command]) -> list[Any]:
    connection.send_packed_command(connection.pack_commands(commands))
    replies, failure = [], None
    for _ in commands:  # all of them: the next command must find no reply of another
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return replies


async def _ask_async(connection: Any, packed: bytes, read: Read | None) -> Any:
    """Leaves the connection with nothing to read: whatever else went wrong, a cancellation too, ends it."""
    try:
        if not connection.is_ready:
            await connection.reconnect_if_closed()
        return await connection.retry.call_with_retry(
            lambda: _exchange_async(connection, packed, read),
            lambda _error: connection.disconnect(nowait=True),  # by TLS a silent peer would be waited for
        )
    except ResponseError:
        raise
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


async def _exchange_async(connection: Any, packed: bytes, read: Read | None) -> Any:
    if not connection.is_ready:
        await connection.make_ready()
    reply = ReplyProtocol.of(connection).expect(read)
    try:
        await connection.write(packed)
    except BaseException:
        if not reply.cancel():
            reply.exception()  # else asyncio would say that nobody looked at it
        raise
    return await arrival(reply, connection.socket_timeout)
